/* What HIP says of an address. */
#include "sim.h"

struct attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int is_managed;
    unsigned flags;
};

hipError_t hipPointerGetAttributes(struct attributes *attributes, const void *address) {
    CALL(hipPointerGetAttributes);
    struct block block;
    if (!attributes) return failed(hipErrorInvalidValue);
    if (!block_of(address, &block)) {
        *attributes = (struct attributes){.type = UNREGISTERED, .device = -2};
        /* Before ROCm 6 an address that HIP does not know was an error. */
        return failed(setting("ROCM_SIM_OLD_POINTER", 0) ? hipErrorInvalidValue : hipSuccess);
    }
    *attributes = (struct attributes){
        .type = block.type,
        .device = block.device,
        .device_pointer = (void *)address,
        .host_pointer = block.type == DEVICE ? NULL : (void *)address,
        .is_managed = block.type == MANAGED,
        .flags = block.flags,
    };
    return hipSuccess;
}

static hipError_t address_range(void **base, size_t *size, void *address) {
    struct block block;
    if (!block_of(address, &block)) return failed(hipErrorNotFound);
    if (base) *base = block.base;
    if (size) *size = block.size;
    return hipSuccess;
}

hipError_t hipMemGetAddressRange(void **base, size_t *size, void *address) {
    CALL(hipMemGetAddressRange);
    return address_range(base, size, address);
}

hipError_t hipMemPtrGetInfo(void *address, size_t *size) {
    CALL(hipMemPtrGetInfo);
    return address_range(NULL, size, address);
}
