/* Reads and writes in the order of a stream; hipFile has them since 0.4. */
#include "sim.h"

#include <stdlib.h>

ssize_t hipFileRead(void *handle, void *base, size_t size, off_t file_offset, off_t buffer_offset);
ssize_t hipFileWrite(void *handle, const void *base, size_t size, off_t file_offset, off_t buffer_offset);

/* The arguments are read when the stream gets there, and the answer is written then. */
struct request {
    void *handle, *base;
    const size_t *size;
    const off_t *file_offset, *buffer_offset;
    ssize_t *answer;
};

static void run_read(void *argument) {
    struct request *r = argument;
    *r->answer = hipFileRead(r->handle, r->base, *r->size, *r->file_offset, *r->buffer_offset);
    free(r);
}

static void run_write(void *argument) {
    struct request *r = argument;
    *r->answer = hipFileWrite(r->handle, r->base, *r->size, *r->file_offset, *r->buffer_offset);
    free(r);
}

static hipFileError_t enqueue(void (*run)(void *), struct request request, void *stream) {
    if (!request.size || !request.file_offset || !request.buffer_offset || !request.answer)
        return (hipFileError_t){INVALID_VALUE, 0};
    struct request *copy = malloc(sizeof *copy);
    *copy = request;
    int hip = hipLaunchHostFunc(stream, run, copy);
    if (!hip) return (hipFileError_t){SUCCESS, 0};
    free(copy);
    return (hipFileError_t){HIP_DRIVER_ERROR, hip};
}

hipFileError_t hipFileReadAsync(void *handle, void *base, size_t *size, off_t *file_offset, off_t *buffer_offset,
                                ssize_t *answer, void *stream) {
    CALL(hipFileReadAsync);
    return enqueue(run_read, (struct request){handle, base, size, file_offset, buffer_offset, answer}, stream);
}

hipFileError_t hipFileWriteAsync(void *handle, void *base, size_t *size, off_t *file_offset, off_t *buffer_offset,
                                 ssize_t *answer, void *stream) {
    CALL(hipFileWriteAsync);
    return enqueue(run_write, (struct request){handle, base, size, file_offset, buffer_offset, answer}, stream);
}

hipFileError_t hipFileStreamRegister(void *stream, unsigned flags) {
    CALL(hipFileStreamRegister);
    (void)stream, (void)flags;
    return (hipFileError_t){SUCCESS, 0};
}

hipFileError_t hipFileStreamDeregister(void *stream) {
    CALL(hipFileStreamDeregister);
    (void)stream;
    return (hipFileError_t){SUCCESS, 0};
}
