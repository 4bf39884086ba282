/* The simulated GPUs: how many (ROCM_SIM_DEVICES, default 1), how large (ROCM_SIM_MEMORY, default 4 GiB), what they say. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

static __thread int device;
static int override = -1;

/* Another number of devices from now on; -1: that of the environment again. */
void rocmsim_set_devices(int count) { __atomic_store_n(&override, count, __ATOMIC_RELAXED); }

int device_count(void) {
    int count = __atomic_load_n(&override, __ATOMIC_RELAXED);
    if (count < 0) count = (int)setting("ROCM_SIM_DEVICES", 1);
    return count > MAX_DEVICES ? MAX_DEVICES : count;
}
int current_device(void) { return device; }
size_t device_memory(void) { return (size_t)setting("ROCM_SIM_MEMORY", 4L << 30); }
static bool is_device(int number) { return number >= 0 && number < device_count(); }

hipError_t hipInit(unsigned flags) {
    CALL(hipInit);
    if (flags) return failed(hipErrorInvalidValue);
    return failed(device_count() ? hipSuccess : hipErrorNoDevice);
}

hipError_t hipGetDeviceCount(int *count) {
    CALL(hipGetDeviceCount);
    *count = device_count();
    return failed(*count ? hipSuccess : hipErrorNoDevice);
}

hipError_t hipSetDevice(int number) {
    CALL(hipSetDevice);
    if (!is_device(number)) return failed(hipErrorInvalidDevice);
    device = number;
    return hipSuccess;
}

hipError_t hipGetDevice(int *number) {
    CALL(hipGetDevice);
    if (!device_count()) return failed(hipErrorNoDevice);
    *number = device;
    return hipSuccess;
}

hipError_t hipDeviceGet(int *number, int ordinal) {
    CALL(hipDeviceGet);
    if (!is_device(ordinal)) return failed(hipErrorInvalidDevice);
    *number = ordinal;
    return hipSuccess;
}

hipError_t hipDeviceGetName(char *name, int size, int number) {
    CALL(hipDeviceGetName);
    if (!is_device(number)) return failed(hipErrorInvalidDevice);
    snprintf(name, (size_t)size, "Simulated AMD GPU");
    return hipSuccess;
}

hipError_t hipDeviceGetPCIBusId(char *text, int size, int number) {
    CALL(hipDeviceGetPCIBusId);
    if (!is_device(number)) return failed(hipErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:%02x:00.0", number + 1);
    return hipSuccess;
}

hipError_t hipDeviceGetByPCIBusId(int *number, const char *text) {
    CALL(hipDeviceGetByPCIBusId);
    unsigned bus;
    if (sscanf(text, "%*x:%x", &bus) != 1 || !is_device((int)bus - 1)) return failed(hipErrorInvalidValue);
    *number = (int)bus - 1;
    return hipSuccess;
}

hipError_t hipDeviceCanAccessPeer(int *can, int number, int peer) {
    CALL(hipDeviceCanAccessPeer);
    if (!is_device(number) || !is_device(peer)) return failed(hipErrorInvalidDevice);
    *can = number != peer;
    return hipSuccess;
}

hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    CALL(hipDeviceEnablePeerAccess);
    return failed(!is_device(peer) ? hipErrorInvalidDevice : flags ? hipErrorInvalidValue : hipSuccess);
}

hipError_t hipDeviceGetAttribute(int *value, int attribute, int number) {
    CALL(hipDeviceGetAttribute);
    enum { INTEGRATED = 16, MAJOR = 23, MAX_THREADS = 56, MINOR = 61, PROCESSORS = 63, WARP_SIZE = 87 };
    if (!is_device(number)) return failed(hipErrorInvalidDevice);
    switch (attribute) {
    case INTEGRATED: *value = 0; break;
    case MAJOR: *value = 9; break;
    case MAX_THREADS: *value = 1024; break;
    case MINOR: *value = 4; break;
    case PROCESSORS: *value = 304; break;
    case WARP_SIZE: *value = 64; break;
    default: *value = 1;
    }
    return hipSuccess;
}

enum { HIP_7_0 = 70051831 };
hipError_t hipRuntimeGetVersion(int *version) {
    CALL(hipRuntimeGetVersion);
    *version = HIP_7_0;
    return hipSuccess;
}
hipError_t hipDriverGetVersion(int *version) {
    CALL(hipDriverGetVersion);
    *version = HIP_7_0;
    return hipSuccess;
}

/* The head of hipDeviceProp_t (R0600) and its architecture name; the rest of it stays 0. */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned luid_mask;
    size_t total_memory, shared_memory_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int max_threads, max_block[3], max_grid[3], clock_rate;
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int overlap, processors, timeout, integrated, maps_host_memory, compute_mode, textures[40];
    size_t surface_alignment;
    int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain;
    char middle[564], architecture[256], rest[56];
};
_Static_assert(offsetof(struct properties, pci_bus) == 584, "layout of hipDeviceProp_t");
_Static_assert(offsetof(struct properties, architecture) == 1160, "layout of hipDeviceProp_t");
_Static_assert(sizeof(struct properties) == 1472, "layout of hipDeviceProp_t");

hipError_t hipGetDevicePropertiesR0600(struct properties *properties, int number) {
    CALL(hipGetDevicePropertiesR0600);
    if (!is_device(number)) return failed(hipErrorInvalidDevice);
    *properties = (struct properties){
        .name = "Simulated AMD GPU",
        .architecture = "gfx942:sramecc+:xnack-",
        .total_memory = device_memory(),
        .shared_memory_per_block = 65536,
        .registers_per_block = 65536,
        .warp_size = 64,
        .max_threads = 1024,
        .max_block = {1024, 1024, 1024},
        .max_grid = {0x7fffffff, 0x7fffffff, 0x7fffffff},
        .major = 9,
        .minor = 4,
        .processors = 304,
        .maps_host_memory = 1,
        .texture_alignment = 256,
        .pci_bus = number + 1,
    };
    return hipSuccess;
}
