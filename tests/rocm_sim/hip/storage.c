/* AMD Infinity Storage: reads and writes between a file and device memory, as the kernel driver does them for hipFile.
 *
 * Strict: offset and size in whole 4096-byte pages (EINVAL otherwise), and a read that meets the end of the file is an
 * error (EIO; a short read like everybody's with ROCM_SIM_SHORT_EIO=0). */
#include "sim.h"

#include <errno.h>
#include <unistd.h>

union file_handle {
    void *handle;
    int descriptor;
    uint8_t pad[8];
};
enum { TO_DEVICE, FROM_DEVICE };
static uint64_t moved[2];

/* Bytes moved from storage to the device (0), from the device to storage (1). */
uint64_t rocmsim_ais_bytes(int way) { return __atomic_load_n(&moved[way], __ATOMIC_RELAXED); }

void rocmsim_reset_ais_bytes(void) {
    for (int way = 0; way < 2; way++) __atomic_store_n(&moved[way], 0, __ATOMIC_RELAXED);
}

/* The runtime's word for whatever the driver says. */
static hipError_t refused(int32_t *status, int code) {
    *status = code;
    return failed(hipErrorUnknown);
}

static hipError_t transfer(struct rocmsim_call *call, int way, int file, void *memory, uint64_t size, int64_t offset,
                           uint64_t *done, int32_t *status) {
    long value, n = rocmsim_enter(call);
    size_t room;
    enum memory_type type;
    if (rocmsim_find_fault(call->name, "err", n, &value)) return failed((hipError_t)value);
    if (rocmsim_find_fault(call->name, "status", n, &value)) return refused(status, (int)value);
    char *reached_at = reach(memory, &room, &type);
    if (type != DEVICE || size > room || (uint64_t)offset % PAGE || size % PAGE) return refused(status, -EINVAL);
    if (rocmsim_find_fault(call->name, "short", n, &value) && (uint64_t)value < size) size = (uint64_t)value;
    ssize_t count = way == TO_DEVICE ? pread(file, reached_at, size, offset) : pwrite(file, reached_at, size, offset);
    if (count < 0) return refused(status, -errno);
    if (way == TO_DEVICE && (uint64_t)count < size && setting("ROCM_SIM_SHORT_EIO", 1)) return refused(status, -EIO);
    *status = 0;
    *done = (uint64_t)count;
    __atomic_add_fetch(&moved[way], (uint64_t)count, __ATOMIC_RELAXED);
    return hipSuccess;
}

hipError_t hipAmdFileRead(union file_handle file, void *memory, uint64_t size, int64_t offset, uint64_t *done,
                          int32_t *status) {
    static struct rocmsim_call call = {.name = "hipAmdFileRead"};
    return transfer(&call, TO_DEVICE, file.descriptor, memory, size, offset, done, status);
}

hipError_t hipAmdFileWrite(union file_handle file, void *memory, uint64_t size, int64_t offset, uint64_t *done,
                           int32_t *status) {
    static struct rocmsim_call call = {.name = "hipAmdFileWrite"};
    return transfer(&call, FROM_DEVICE, file.descriptor, memory, size, offset, done, status);
}
