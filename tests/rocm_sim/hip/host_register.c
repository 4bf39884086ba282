/* Page-locks memory that the caller allocated. */
#include "sim.h"

hipError_t hipHostRegister(void *address, size_t size, unsigned flags) {
    CALL(hipHostRegister);
    if (!address || !size) return failed(hipErrorInvalidValue);
    if (!device_count()) return failed(hipErrorNoDevice);
    if (overlaps_block(address, size)) return failed(hipErrorHostMemoryAlreadyRegistered);
    add_block((struct block){address, address, size, HOST, current_device(), false, flags, NULL});
    return hipSuccess;
}

hipError_t hipHostUnregister(void *address) {
    CALL(hipHostUnregister);
    struct block block;
    if (!block_of(address, &block) || block.owned || !take_block(address, HOST, &block))
        return failed(hipErrorHostMemoryNotRegistered);
    return hipSuccess;
}

hipError_t hipHostGetDevicePointer(void **seen, void *address, unsigned flags) {
    CALL(hipHostGetDevicePointer);
    struct block block;
    if (flags || !block_of(address, &block) || block.type == DEVICE) return failed(hipErrorInvalidValue);
    *seen = address;
    return hipSuccess;
}

hipError_t hipHostGetFlags(unsigned *flags, void *address) {
    CALL(hipHostGetFlags);
    struct block block;
    if (!block_of(address, &block) || block.type != HOST) return failed(hipErrorInvalidValue);
    *flags = block.flags;
    return hipSuccess;
}
