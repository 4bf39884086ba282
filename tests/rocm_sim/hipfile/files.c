/* Registered files: a buffered and an unbuffered descriptor each, one of them the caller's. */
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct description {
    int type;
    union {
        int fd;
        void *pointer;
    } handle;
    const void *operations;
};
enum { OPAQUE_FD = 1, DIOALIGN = 0x2000 };

/* Where struct statx has what kernels tell since 6.1; the C library's header may be older. */
enum { DIO_MEM_ALIGN_AT = 0x98, DIO_OFFSET_ALIGN_AT = 0x9c };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct file *files;

static unsigned at_offset(const struct statx *status, size_t offset) {
    return *(const unsigned *)((const char *)status + offset);
}

static bool is_registered(int key) {
    pthread_mutex_lock(&lock);
    struct file *file = files;
    while (file && file->key != key) file = file->next;
    pthread_mutex_unlock(&lock);
    return file;
}

/* Opens the other of the two descriptors; false: that failed, and errno says why. */
static bool open_other(struct file *file, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file->key);
    flags |= O_CLOEXEC;
    if (flags & O_DIRECT) {
        file->unbuffered_fd = file->key;
        file->own_fd = file->buffered_fd = open(path, flags & ~O_DIRECT);
        return file->own_fd >= 0;
    }
    file->buffered_fd = file->key;
    file->own_fd = file->unbuffered_fd = open(path, flags | O_DIRECT);
    if (file->own_fd >= 0) return true;
    file->memory_align = file->offset_align = 0;
    return errno == EINVAL; /* tmpfs and some FUSE have no O_DIRECT: registered all the same */
}

hipFileError_t hipFileHandleRegister(void **handle, struct description *description) {
    CALL(hipFileHandleRegister);
    if (!handle || !description) return (hipFileError_t){INVALID_VALUE, 0};
    if (description->type != OPAQUE_FD) return (hipFileError_t){IO_NOT_SUPPORTED, 0};
    struct statx status;
    int key = description->handle.fd, flags = fcntl(key, F_GETFL);
    if (flags < 0 || statx(key, "", AT_EMPTY_PATH, STATX_TYPE | STATX_MODE | DIOALIGN, &status))
        return (hipFileError_t){INTERNAL_ERROR, 0};
    open_driver();
    if (is_registered(key)) return (hipFileError_t){HANDLE_ALREADY_REGISTERED, 0};
    bool told = status.stx_mask & DIOALIGN;
    struct file *file = malloc(sizeof *file);
    *file = (struct file){
        .key = key,
        .memory_align = told ? at_offset(&status, DIO_MEM_ALIGN_AT) : 4096,
        .offset_align = told ? at_offset(&status, DIO_OFFSET_ALIGN_AT) : 4096,
        .regular = S_ISREG(status.stx_mode),
        .block_device = S_ISBLK(status.stx_mode),
        .on_supported_fs = is_supported_fs(status.stx_dev_major, status.stx_dev_minor),
    };
    if (!open_other(file, flags)) {
        free(file);
        return (hipFileError_t){INTERNAL_ERROR, 0};
    }
    pthread_mutex_lock(&lock);
    file->next = files;
    files = file;
    pthread_mutex_unlock(&lock);
    *handle = file;
    return (hipFileError_t){SUCCESS, 0};
}

static void close_file(struct file *file) {
    if (file->own_fd >= 0) close(file->own_fd);
    free(file);
}

/* Refused, without a word, while the file is read or written. */
void hipFileHandleDeregister(void *handle) {
    static struct rocmsim_call call = {.name = "hipFileHandleDeregister"};
    rocmsim_enter(&call);
    struct file *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct file **at = &files; *at && !found; at = &(*at)->next)
        if (*at == handle && !(*at)->running) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (found) close_file(found);
}

struct file *lease_file(void *handle) {
    pthread_mutex_lock(&lock);
    struct file *file = files;
    while (file && file != handle) file = file->next;
    if (file) file->running++;
    pthread_mutex_unlock(&lock);
    return file;
}

void return_file(struct file *file) {
    pthread_mutex_lock(&lock);
    file->running--;
    pthread_mutex_unlock(&lock);
}

void close_all_files(void) {
    pthread_mutex_lock(&lock);
    struct file *all = files;
    files = NULL;
    pthread_mutex_unlock(&lock);
    while (all) {
        struct file *file = all;
        all = file->next;
        close_file(file);
    }
}

long live_files(void) {
    long count = 0;
    pthread_mutex_lock(&lock);
    for (struct file *file = files; file; file = file->next) count++;
    pthread_mutex_unlock(&lock);
    return count;
}
