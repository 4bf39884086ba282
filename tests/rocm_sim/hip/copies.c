/* Copies and fills, on a stream; those that name a direction must tell the truth. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct copy {
    char *to, *from;
    size_t to_pitch, from_pitch, width, height;
    int way;
};
static uint64_t copied[BY_ADDRESS];

/* Bytes that copies have moved: host to host, host to device, device to host, device to device. */
uint64_t rocmsim_copied(int way) { return __atomic_load_n(&copied[way], __ATOMIC_RELAXED); }

void rocmsim_reset_copied(void) {
    for (int way = 0; way < BY_ADDRESS; way++) __atomic_store_n(&copied[way], 0, __ATOMIC_RELAXED);
}

static void run_copy(void *data) {
    struct copy *copy = data;
    for (size_t row = 0; row < copy->height; row++)
        memmove(copy->to + row * copy->to_pitch, copy->from + row * copy->from_pitch, copy->width);
    __atomic_add_fetch(&copied[copy->way], copy->width * copy->height, __ATOMIC_RELAXED);
}

static bool truthful(int way, enum memory_type to, enum memory_type from) {
    bool to_device = way == HOST_TO_DEVICE || way == DEVICE_TO_DEVICE;
    bool from_device = way == DEVICE_TO_HOST || way == DEVICE_TO_DEVICE;
    return way == BY_ADDRESS || ((to_device ? to != UNREGISTERED : to != DEVICE) &&
                                 (from_device ? from != UNREGISTERED : from != DEVICE));
}

static size_t span(size_t pitch, size_t width, size_t height) { return (height - 1) * pitch + width; }

static hipError_t copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                            int way, void *stream_handle, bool asynchronous) {
    struct stream *stream = stream_of(stream_handle);
    if (!device_count()) return failed(hipErrorNoDevice);
    if (!width || !height) return hipSuccess;
    if (!to || !from || !stream || way < HOST_TO_HOST || way > BY_ADDRESS) return failed(hipErrorInvalidValue);
    if (height > 1 && (width > to_pitch || width > from_pitch)) return failed(hipErrorInvalidValue);
    size_t to_room, from_room;
    enum memory_type to_type, from_type;
    struct copy *copy = malloc(sizeof *copy);
    *copy = (struct copy){
        .to = reach(to, &to_room, &to_type),
        .from = reach(from, &from_room, &from_type),
        .to_pitch = to_pitch,
        .from_pitch = from_pitch,
        .width = width,
        .height = height,
    };
    copy->way = (from_type == DEVICE ? 2 : 0) + (to_type == DEVICE ? 1 : 0);
    if (span(to_pitch, width, height) > to_room || span(from_pitch, width, height) > from_room ||
        !truthful(way, to_type, from_type)) {
        free(copy);
        return failed(hipErrorInvalidValue);
    }
    struct dependency end = {stream, submit(stream, run_copy, copy, (struct dependency){0})};
    /* Pageable memory goes through a buffer of the driver's, which the caller waits for. */
    if (!asynchronous || to_type == UNREGISTERED || from_type == UNREGISTERED) wait_for(end);
    return hipSuccess;
}

static hipError_t copy_bytes(void *to, const void *from, size_t size, int way, void *stream, bool asynchronous) {
    return copy_rows(to, size, from, size, size, 1, way, stream, asynchronous);
}

hipError_t hipMemcpy(void *to, const void *from, size_t size, int way) {
    CALL(hipMemcpy);
    return copy_bytes(to, from, size, way, NULL, false);
}
hipError_t hipMemcpyAsync(void *to, const void *from, size_t size, int way, void *stream) {
    CALL(hipMemcpyAsync);
    return copy_bytes(to, from, size, way, stream, true);
}
hipError_t hipMemcpyWithStream(void *to, const void *from, size_t size, int way, void *stream) {
    CALL(hipMemcpyWithStream);
    return copy_bytes(to, from, size, way, stream, false);
}
hipError_t hipMemcpyHtoD(void *to, void *from, size_t size) {
    CALL(hipMemcpyHtoD);
    return copy_bytes(to, from, size, HOST_TO_DEVICE, NULL, false);
}
hipError_t hipMemcpyHtoDAsync(void *to, const void *from, size_t size, void *stream) {
    CALL(hipMemcpyHtoDAsync);
    return copy_bytes(to, from, size, HOST_TO_DEVICE, stream, true);
}
hipError_t hipMemcpyDtoH(void *to, void *from, size_t size) {
    CALL(hipMemcpyDtoH);
    return copy_bytes(to, from, size, DEVICE_TO_HOST, NULL, false);
}
hipError_t hipMemcpyDtoHAsync(void *to, void *from, size_t size, void *stream) {
    CALL(hipMemcpyDtoHAsync);
    return copy_bytes(to, from, size, DEVICE_TO_HOST, stream, true);
}
hipError_t hipMemcpyDtoD(void *to, void *from, size_t size) {
    CALL(hipMemcpyDtoD);
    return copy_bytes(to, from, size, DEVICE_TO_DEVICE, NULL, false);
}
hipError_t hipMemcpyDtoDAsync(void *to, void *from, size_t size, void *stream) {
    CALL(hipMemcpyDtoDAsync);
    return copy_bytes(to, from, size, DEVICE_TO_DEVICE, stream, true);
}
hipError_t hipMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t size) {
    CALL(hipMemcpyPeer);
    (void)to_device, (void)from_device; /* the addresses tell */
    return copy_bytes(to, from, size, DEVICE_TO_DEVICE, NULL, false);
}
hipError_t hipMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, void *stream) {
    CALL(hipMemcpyPeerAsync);
    (void)to_device, (void)from_device;
    return copy_bytes(to, from, size, DEVICE_TO_DEVICE, stream, true);
}
hipError_t hipMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                       int way) {
    CALL(hipMemcpy2D);
    return copy_rows(to, to_pitch, from, from_pitch, width, height, way, NULL, false);
}
hipError_t hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                            size_t height, int way, void *stream) {
    CALL(hipMemcpy2DAsync);
    return copy_rows(to, to_pitch, from, from_pitch, width, height, way, stream, true);
}

struct fill {
    char *to;
    int value;
    size_t size;
};

static void run_fill(void *data) {
    struct fill *fill = data;
    memset(fill->to, fill->value, fill->size);
}

static hipError_t fill_bytes(void *to, int value, size_t size, void *stream_handle) {
    struct stream *stream = stream_of(stream_handle);
    size_t room;
    enum memory_type type;
    if (!size) return hipSuccess;
    char *memory = reach(to, &room, &type);
    if (!stream || type == UNREGISTERED || size > room) return failed(hipErrorInvalidValue);
    struct fill *fill = malloc(sizeof *fill);
    *fill = (struct fill){memory, value, size};
    submit(stream, run_fill, fill, (struct dependency){0});
    return hipSuccess;
}

hipError_t hipMemset(void *to, int value, size_t size) {
    CALL(hipMemset);
    return fill_bytes(to, value, size, NULL);
}
hipError_t hipMemsetAsync(void *to, int value, size_t size, void *stream) {
    CALL(hipMemsetAsync);
    return fill_bytes(to, value, size, stream);
}
hipError_t hipMemsetD8(void *to, unsigned char value, size_t size) {
    CALL(hipMemsetD8);
    return fill_bytes(to, value, size, NULL);
}
