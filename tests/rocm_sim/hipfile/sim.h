/* What the parts of the simulated hipFile share. Sizes, offsets and alignments in bytes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum hipfile_error {
    SUCCESS = 0,
    NOT_INITIALIZED = 5001,
    DRIVER_CLOSING = 5006,
    IO_NOT_SUPPORTED = 5008,
    HIP_DRIVER_ERROR = 5011,
    MEMORY_TYPE_INVALID = 5013,
    POINTER_RANGE_ERROR = 5014,
    INVALID_VALUE = 5022,
    MEMORY_ALREADY_REGISTERED = 5023,
    MEMORY_NOT_REGISTERED = 5024,
    HANDLE_NOT_REGISTERED = 5027,
    HANDLE_ALREADY_REGISTERED = 5028,
    INTERNAL_ERROR = 5030,
};
typedef struct {
    int error, hip;
} hipFileError_t;

/* ---- from the simulated HIP runtime */
struct rocmsim_call {
    const char *name;
    long count;
    bool listed;
    struct rocmsim_call *next;
};
long rocmsim_enter(struct rocmsim_call *call);
bool rocmsim_find_fault(const char *name, const char *action, long n, long *value);
enum { MEMORY_TYPE_DEVICE = 2, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };
struct attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int is_managed;
    unsigned flags;
};
int hipPointerGetAttributes(struct attributes *attributes, const void *address);
int hipMemGetAddressRange(void **base, size_t *size, void *address);
int hipMemcpy(void *to, const void *from, size_t size, int way);
int hipGetProcAddress(const char *name, void **function, int version, uint64_t flags, int *status);
int hipLaunchHostFunc(void *stream, void (*call)(void *), void *argument);

/* First line of every simulated function that answers a hipFileError_t: counts, and answers `ret` faults. */
#define CALL(function)                                        \
    static struct rocmsim_call call_ = {.name = #function};   \
    long n_ = rocmsim_enter(&call_), injected_;               \
    if (rocmsim_find_fault(#function, "ret", n_, &injected_)) return (hipFileError_t){(int)injected_, 0}

/* ---- driver.c */
void open_driver(void); /* as the first registration does; no more than once */
bool driver_is_open(void);

/* ---- configuration.c: each is looked up at its first use, and then stays so */
bool compat_mode_allowed(void);
bool compat_mode_forced(void);
bool any_file_system(void);
/* The file is an 8-byte union with the descriptor in front, which travels like an integer. */
typedef int ais_function(uint64_t file, void *memory, uint64_t size, int64_t offset, uint64_t *done, int32_t *status);
ais_function *ais(bool write); /* NULL where the runtime has none */
void forget_configuration(void);

/* ---- files.c */
struct file {
    int key;                       /* the descriptor it was registered with */
    int buffered_fd, unbuffered_fd; /* -1: there is none */
    int own_fd;                    /* the one of the two that was opened here */
    unsigned memory_align, offset_align; /* 0 where the unbuffered descriptor was refused */
    bool regular, block_device, on_supported_fs;
    int running; /* reads and writes under way */
    struct file *next;
};
struct file *lease_file(void *handle);
void return_file(struct file *file);
void close_all_files(void);
long live_files(void);

/* ---- mounts.c */
bool is_supported_fs(unsigned major, unsigned minor);

/* ---- buffers.c */
enum hipfile_error check_memory(const void *address, size_t *room, int *hip);
bool buffer_size(const void *base, size_t *size);
void forget_all_buffers(void);
long live_buffers(void);

/* ---- stats.c */
enum { FAST_READ, FAST_WRITE, FALLBACK_READ, FALLBACK_WRITE, STATS };
void served(int how, size_t size);
