/* Memory of the simulated GPUs, and of the host where HIP allocates it.
 *
 * Device memory is a memfd mapped twice: callers see a mapping that the host may not touch, as on a discrete GPU, and
 * the simulator copies through the other. New memory is full of 0xA5: nothing is zeroed for anybody. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POISON = 0xA5 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static size_t used[MAX_DEVICES];
static int running_kernels;

static size_t page_up(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }
static bool guarded(void) { return setting("ROCM_SIM_GUARD", 1); }

static struct block *find(const void *address) { /* under the lock */
    for (struct block *block = blocks; block; block = block->next)
        if ((char *)address >= block->base && (char *)address < block->base + block->size) return block;
    return NULL;
}

bool block_of(const void *address, struct block *found) {
    pthread_mutex_lock(&lock);
    struct block *block = find(address);
    if (block) *found = *block;
    pthread_mutex_unlock(&lock);
    return block;
}

bool overlaps_block(const void *address, size_t size) {
    bool overlap = false;
    pthread_mutex_lock(&lock);
    for (struct block *block = blocks; block; block = block->next)
        overlap |= (char *)address < block->base + block->size && block->base < (char *)address + size;
    pthread_mutex_unlock(&lock);
    return overlap;
}

void add_block(struct block made) {
    struct block *block = malloc(sizeof *block);
    *block = made;
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    if (block->type == DEVICE) used[block->device] += block->size;
    pthread_mutex_unlock(&lock);
}

bool take_block(void *base, enum memory_type type, struct block *taken) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct block **at = &blocks; *at && !found; at = found ? at : &(*at)->next) {
        struct block *block = *at;
        found = block->base == base && block->type == type;
        if (!found) continue;
        *taken = *block;
        *at = block->next;
        if (type == DEVICE) used[block->device] -= block->size;
        free(block);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

char *reach(const void *address, size_t *room, enum memory_type *type) {
    struct block block;
    if (!block_of(address, &block)) {
        *room = SIZE_MAX;
        *type = UNREGISTERED;
        return (char *)address;
    }
    size_t offset = (size_t)((char *)address - block.base);
    *room = block.size - offset;
    *type = block.type;
    return block.shadow + offset;
}

void kernels_may_reach(bool on) {
    pthread_mutex_lock(&lock);
    running_kernels += on ? 1 : -1;
    bool change = guarded() && (on || !running_kernels);
    for (struct block *block = blocks; block && change; block = block->next)
        if (block->type == DEVICE && block->owned)
            mprotect(block->base, page_up(block->size), on ? PROT_READ | PROT_WRITE : PROT_NONE);
    pthread_mutex_unlock(&lock);
}

/* Blocks that live; `owned` tells memory allocated here from memory that the caller registered. */
long live_blocks(enum memory_type type, bool owned) {
    long count = 0;
    pthread_mutex_lock(&lock);
    for (struct block *block = blocks; block; block = block->next) count += block->type == type && block->owned == owned;
    pthread_mutex_unlock(&lock);
    return count;
}

static size_t left_on(int device) {
    pthread_mutex_lock(&lock);
    size_t total = device_memory(), left = total > used[device] ? total - used[device] : 0;
    pthread_mutex_unlock(&lock);
    return left;
}

hipError_t hipMalloc(void **address, size_t size) {
    CALL(hipMalloc);
    if (!address) return failed(hipErrorInvalidValue);
    *address = NULL;
    if (!device_count()) return failed(hipErrorNoDevice);
    if (!size) return hipSuccess;
    int device = current_device();
    size_t length = page_up(size);
    if (size > left_on(device)) return failed(hipErrorOutOfMemory);
    int memory = memfd_create("rocm_sim", MFD_CLOEXEC);
    if (memory < 0) return failed(hipErrorOutOfMemory);
    char *shadow = MAP_FAILED, *seen = MAP_FAILED;
    if (!ftruncate(memory, (off_t)length)) {
        shadow = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        seen = mmap(NULL, length, guarded() ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    }
    close(memory);
    if (shadow == MAP_FAILED || seen == MAP_FAILED) {
        if (shadow != MAP_FAILED) munmap(shadow, length);
        if (seen != MAP_FAILED) munmap(seen, length);
        return failed(hipErrorOutOfMemory);
    }
    memset(shadow, POISON, length);
    add_block((struct block){seen, shadow, size, DEVICE, device, true, 0, NULL});
    *address = seen;
    return hipSuccess;
}

hipError_t hipFree(void *address) {
    CALL(hipFree);
    struct block block;
    if (!address) return hipSuccess;
    synchronize_all();
    if (!take_block(address, DEVICE, &block) && !take_block(address, MANAGED, &block))
        return failed(hipErrorInvalidValue);
    munmap(block.base, page_up(block.size));
    if (block.shadow != block.base) munmap(block.shadow, page_up(block.size));
    return hipSuccess;
}

static hipError_t allocate_on_host(void **address, size_t size, unsigned flags, enum memory_type type) {
    if (!address) return failed(hipErrorInvalidValue);
    *address = NULL;
    if (!device_count()) return failed(hipErrorNoDevice);
    size_t length = page_up(size ? size : 1);
    char *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return failed(hipErrorOutOfMemory);
    memset(memory, POISON, length);
    add_block((struct block){memory, memory, size ? size : 1, type, current_device(), true, flags, NULL});
    *address = memory;
    return hipSuccess;
}

hipError_t hipHostMalloc(void **address, size_t size, unsigned flags) {
    CALL(hipHostMalloc);
    return allocate_on_host(address, size, flags, HOST);
}

hipError_t hipHostAlloc(void **address, size_t size, unsigned flags) {
    CALL(hipHostAlloc);
    return allocate_on_host(address, size, flags, HOST);
}

hipError_t hipMallocManaged(void **address, size_t size, unsigned flags) {
    CALL(hipMallocManaged);
    return allocate_on_host(address, size, flags, MANAGED);
}

hipError_t hipHostFree(void *address) {
    CALL(hipHostFree);
    struct block block;
    if (!address) return hipSuccess;
    synchronize_all();
    if (!block_of(address, &block) || !block.owned || !take_block(address, HOST, &block))
        return failed(hipErrorInvalidValue);
    munmap(block.base, page_up(block.size));
    return hipSuccess;
}

hipError_t hipMemGetInfo(size_t *left, size_t *total) {
    CALL(hipMemGetInfo);
    if (left) *left = left_on(current_device());
    if (total) *total = device_memory();
    return hipSuccess;
}
