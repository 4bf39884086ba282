/* The driver: counted by its users, opened by the first registration too. */
#include "sim.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long users;

void open_driver(void) {
    pthread_mutex_lock(&lock);
    if (!users) users = 1;
    pthread_mutex_unlock(&lock);
}

int64_t hipFileUseCount(void) {
    pthread_mutex_lock(&lock);
    int64_t count = users;
    pthread_mutex_unlock(&lock);
    return count;
}

bool driver_is_open(void) { return hipFileUseCount() > 0; }

hipFileError_t hipFileDriverOpen(void) {
    CALL(hipFileDriverOpen);
    pthread_mutex_lock(&lock);
    users++;
    pthread_mutex_unlock(&lock);
    return (hipFileError_t){SUCCESS, 0};
}

hipFileError_t hipFileDriverClose(void) {
    CALL(hipFileDriverClose);
    pthread_mutex_lock(&lock);
    bool open = users > 0, last = open && --users == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        forget_all_buffers();
        close_all_files();
    }
    return (hipFileError_t){open ? SUCCESS : NOT_INITIALIZED, 0};
}

/* As if the library had just been loaded; for tests. */
void rocmsim_hipfile_reset(void) {
    pthread_mutex_lock(&lock);
    users = 0;
    pthread_mutex_unlock(&lock);
    forget_all_buffers();
    close_all_files();
    forget_configuration();
}

hipFileError_t hipFileGetVersion(unsigned *major, unsigned *minor, unsigned *patch) {
    CALL(hipFileGetVersion);
    if (!major || !minor || !patch) return (hipFileError_t){INVALID_VALUE, 0};
    *major = 0;
    *minor = HIPFILE_MINOR;
    *patch = 0;
    return (hipFileError_t){SUCCESS, 0};
}

const char *hipFileGetOpErrorString(int error) {
    switch (error) {
    case SUCCESS: return "hipFile success";
    case NOT_INITIALIZED: return "the driver is not open";
    case DRIVER_CLOSING: return "the driver is closing";
    case IO_NOT_SUPPORTED: return "no such handle is supported";
    case HIP_DRIVER_ERROR: return "an error of HIP";
    case MEMORY_TYPE_INVALID: return "not device memory";
    case POINTER_RANGE_ERROR: return "more than the allocation holds";
    case INVALID_VALUE: return "an argument has an invalid value";
    case MEMORY_ALREADY_REGISTERED: return "the memory is registered already";
    case MEMORY_NOT_REGISTERED: return "the memory is not registered";
    case HANDLE_NOT_REGISTERED: return "the file is not registered";
    case HANDLE_ALREADY_REGISTERED: return "the file is registered already";
    case INTERNAL_ERROR: return "an internal error";
    default: return "an unknown error";
    }
}
