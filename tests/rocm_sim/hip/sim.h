/* What the parts of the simulated HIP runtime share. Sizes in bytes, times in microseconds. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int hipError_t;
enum {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorInvalidConfiguration = 9,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorInvalidImage = 200,
    hipErrorInvalidHandle = 400,
    hipErrorNotFound = 500,
    hipErrorNotReady = 600,
    hipErrorHostMemoryAlreadyRegistered = 712,
    hipErrorHostMemoryNotRegistered = 713,
    hipErrorNotSupported = 801,
    hipErrorUnknown = 999,
};
enum memory_type { UNREGISTERED = 0, HOST = 1, DEVICE = 2, MANAGED = 3 };
enum { MAX_DEVICES = 8, PAGE = 4096 };

/* ---- calls.c: every call is counted, and a fault can be injected into it */
struct rocmsim_call {
    const char *name;
    long count;
    bool listed;
    struct rocmsim_call *next;
};
long rocmsim_enter(struct rocmsim_call *call);
bool rocmsim_find_fault(const char *name, const char *action, long n, long *value);
bool faulted(struct rocmsim_call *call, hipError_t *error);
hipError_t failed(hipError_t error); /* remembers it for hipGetLastError */

/* First line of every simulated HIP function. */
#define CALL(function)                                              \
    static struct rocmsim_call call_ = {.name = #function};         \
    hipError_t injected_;                                           \
    if (faulted(&call_, &injected_)) return failed(injected_)

long setting(const char *name, long otherwise); /* an environment variable, read anew each time */

/* ---- devices.c */
int device_count(void);
int current_device(void);
size_t device_memory(void);

/* ---- memory.c */
struct block {
    char *base;   /* the address callers see; of device memory PROT_NONE for the host */
    char *shadow; /* the same memory, as the simulator reaches it */
    size_t size;
    enum memory_type type;
    int device;
    bool owned;   /* mapped here, not by the caller */
    unsigned flags;
    struct block *next;
};
bool block_of(const void *address, struct block *found); /* a copy of the block that `address` is in */
void add_block(struct block made);
bool take_block(void *base, enum memory_type type, struct block *taken);
bool overlaps_block(const void *address, size_t size);
/* Where the simulator reaches `address`, how much of its block follows, and what it is. */
char *reach(const void *address, size_t *room, enum memory_type *type);
void kernels_may_reach(bool on); /* counted: device memory is open to this process while a kernel runs */
long live_blocks(enum memory_type type, bool owned);

/* ---- streams.c */
struct stream;
struct stream *stream_of(void *handle); /* NULL: no such stream; handles 0 to 2 are the current device's null stream */
struct dependency {
    struct stream *stream;
    uint64_t ticket;
};
/* Puts run(data) on the stream, after `after` too; the stream frees `data` with free(). */
uint64_t submit(struct stream *stream, void (*run)(void *), void *data, struct dependency after);
bool reached(struct dependency at);
void wait_for(struct dependency at);
void synchronize(struct stream *stream);
void synchronize_all(void);
void wake_streams(void); /* the faults have changed */
long live_streams(void);

/* ---- events.c */
long live_events(void);

/* ---- copies.c */
enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };
