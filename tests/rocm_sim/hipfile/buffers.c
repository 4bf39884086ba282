/* Registered buffers: device memory by its base address. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>

struct buffer {
    const char *base;
    size_t size;
    struct buffer *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *buffers;

enum hipfile_error check_memory(const void *address, size_t *room, int *hip) {
    struct attributes attributes;
    void *base;
    size_t size;
    if (!address) return INVALID_VALUE;
    if ((*hip = hipPointerGetAttributes(&attributes, address))) return HIP_DRIVER_ERROR;
    if (attributes.type != MEMORY_TYPE_DEVICE) return MEMORY_TYPE_INVALID;
    if ((*hip = hipMemGetAddressRange(&base, &size, (void *)address))) return HIP_DRIVER_ERROR;
    *room = size - (size_t)((const char *)address - (const char *)base);
    return SUCCESS;
}

static struct buffer *find(const void *base) { /* under the lock */
    struct buffer *buffer = buffers;
    while (buffer && buffer->base != base) buffer = buffer->next;
    return buffer;
}

bool buffer_size(const void *base, size_t *size) {
    pthread_mutex_lock(&lock);
    struct buffer *buffer = find(base);
    if (buffer) *size = buffer->size;
    pthread_mutex_unlock(&lock);
    return buffer;
}

hipFileError_t hipFileBufRegister(const void *base, size_t size, int flags) {
    CALL(hipFileBufRegister);
    (void)flags;
    size_t room, registered;
    int hip = 0;
    open_driver();
    if (buffer_size(base, &registered)) return (hipFileError_t){MEMORY_ALREADY_REGISTERED, 0};
    enum hipfile_error error = check_memory(base, &room, &hip);
    if (error == HIP_DRIVER_ERROR && hip == 1) return (hipFileError_t){INVALID_VALUE, 0};
    if (error) return (hipFileError_t){error, hip};
    if (size > room) return (hipFileError_t){POINTER_RANGE_ERROR, 0};
    struct buffer *buffer = malloc(sizeof *buffer);
    pthread_mutex_lock(&lock);
    *buffer = (struct buffer){base, size, buffers};
    buffers = buffer;
    pthread_mutex_unlock(&lock);
    return (hipFileError_t){SUCCESS, 0};
}

hipFileError_t hipFileBufDeregister(const void *base) {
    CALL(hipFileBufDeregister);
    if (!driver_is_open()) return (hipFileError_t){DRIVER_CLOSING, 0};
    struct buffer *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct buffer **at = &buffers; *at; at = &(*at)->next)
        if ((*at)->base == base) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(found);
    return (hipFileError_t){found ? SUCCESS : MEMORY_NOT_REGISTERED, 0};
}

void forget_all_buffers(void) {
    pthread_mutex_lock(&lock);
    while (buffers) {
        struct buffer *buffer = buffers;
        buffers = buffer->next;
        free(buffer);
    }
    pthread_mutex_unlock(&lock);
}

long live_buffers(void) {
    long count = 0;
    pthread_mutex_lock(&lock);
    for (struct buffer *buffer = buffers; buffer; buffer = buffer->next) count++;
    pthread_mutex_unlock(&lock);
    return count;
}
