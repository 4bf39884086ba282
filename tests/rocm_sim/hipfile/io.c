/* Reads and writes: who serves them, by hipFile's published conditions, and what is tried after a failure. */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_CALL = 0x7ffff000, BOUNCE = 16 << 20 };

struct request {
    bool write;
    struct file *file;
    char *base;
    size_t size;
    off_t file_offset, buffer_offset;
};

static bool aligned(uint64_t value, unsigned align) { return align && value % align == 0; }

static bool fastpath_takes(const struct request *request) {
    const struct file *file = request->file;
    return ais(false) && ais(true) && !compat_mode_forced() && file->unbuffered_fd >= 0 &&
           request->file_offset >= 0 && request->buffer_offset >= 0 &&
           (file->block_device || (file->regular && (file->on_supported_fs || any_file_system()))) &&
           aligned((uint64_t)request->file_offset, file->offset_align) && aligned(request->size, file->offset_align) &&
           aligned((uint64_t)(uintptr_t)request->base + (uint64_t)request->buffer_offset, file->memory_align);
}

/* Bytes moved; a negative answer with `retry` set may be tried on the fallback. */
static ssize_t by_fastpath(const struct request *request, bool *retry) {
    uint64_t done = 0;
    int32_t status = 0;
    int hip = ais(request->write)((uint64_t)request->file->unbuffered_fd, request->base + request->buffer_offset,
                                  request->size, request->file_offset, &done, &status);
    if (!hip && !status) {
        served(request->write ? FAST_WRITE : FAST_READ, done);
        return (ssize_t)done;
    }
    int code = abs(status);
    *retry = code == ENODEV || code == EREMOTEIO;
    if (!code) return -hip;
    errno = code;
    return -1;
}

/* One step through host memory; errors as hipFileRead answers them. */
static ssize_t bounce_once(const struct request *request, char *bounce, size_t at, size_t size) {
    char *memory = request->base + request->buffer_offset + at;
    off_t offset = request->file_offset + (off_t)at;
    if (request->write) {
        int hip = hipMemcpy(bounce, memory, size, DEVICE_TO_HOST);
        return hip ? -hip : pwrite(request->file->buffered_fd, bounce, size, offset);
    }
    ssize_t count = pread(request->file->buffered_fd, bounce, size, offset);
    int hip = count > 0 ? hipMemcpy(memory, bounce, (size_t)count, HOST_TO_DEVICE) : 0;
    return hip ? -hip : count;
}

static ssize_t by_fallback(const struct request *request) {
    char *bounce = malloc(request->size < BOUNCE ? request->size + 1 : BOUNCE);
    size_t total = 0;
    ssize_t count = 0;
    do {
        size_t left = request->size - total;
        count = bounce_once(request, bounce, total, left < BOUNCE ? left : BOUNCE);
        if (count > 0) total += (size_t)count;
    } while ((count > 0 && total < request->size) || (count == -1 && errno == EINTR));
    int code = errno;
    if (request->write && count >= 0) fdatasync(request->file->buffered_fd);
    free(bounce);
    errno = code;
    if (count < 0) return count;
    served(request->write ? FALLBACK_WRITE : FALLBACK_READ, total);
    return (ssize_t)total;
}

/* `room`: bytes from the buffer's base on. */
static ssize_t serve(struct request request, size_t room, bool decline) {
    bool fast = !decline && fastpath_takes(&request), fallback = compat_mode_allowed(), retry = false;
    if (!fast && !fallback) return -INTERNAL_ERROR;
    if (request.file_offset < 0 || request.buffer_offset < 0 || (size_t)request.buffer_offset >= room ||
        request.size > room - (size_t)request.buffer_offset)
        return -INVALID_VALUE;
    if (request.size > MAX_CALL) request.size = MAX_CALL;
    if (fast) {
        ssize_t count = by_fastpath(&request, &retry);
        if (count >= 0 || !retry || !fallback) return count;
    }
    return by_fallback(&request);
}

/* Bytes moved; -1 with errno; or minus a HIP or hipFile error. */
static ssize_t transfer(struct rocmsim_call *call, struct request request, void *handle) {
    long n = rocmsim_enter(call), value;
    size_t room;
    int hip = 0;
    if (rocmsim_find_fault(call->name, "delay", n, &value)) usleep((useconds_t)value);
    if (rocmsim_find_fault(call->name, "ret", n, &value)) return -value;
    if (rocmsim_find_fault(call->name, "errno", n, &value)) {
        errno = (int)value;
        return -1;
    }
    if (!driver_is_open()) {
        errno = EINVAL;
        return -1;
    }
    if (rocmsim_find_fault(call->name, "short", n, &value) && (size_t)value < request.size) request.size = (size_t)value;
    bool decline = rocmsim_find_fault(call->name, "decline", n, &value) && value;
    request.file = lease_file(handle);
    if (!request.file) return -HANDLE_NOT_REGISTERED;
    enum hipfile_error error = buffer_size(request.base, &room) ? SUCCESS : check_memory(request.base, &room, &hip);
    ssize_t count = error == HIP_DRIVER_ERROR ? -hip : -(ssize_t)error;
    if (!error) count = serve(request, room, decline);
    return_file(request.file);
    return count;
}

ssize_t hipFileRead(void *handle, void *base, size_t size, off_t file_offset, off_t buffer_offset) {
    static struct rocmsim_call call = {.name = "hipFileRead"};
    return transfer(&call, (struct request){false, NULL, base, size, file_offset, buffer_offset}, handle);
}

ssize_t hipFileWrite(void *handle, const void *base, size_t size, off_t file_offset, off_t buffer_offset) {
    static struct rocmsim_call call = {.name = "hipFileWrite"};
    return transfer(&call, (struct request){true, NULL, (char *)base, size, file_offset, buffer_offset}, handle);
}
