/* Functions by name. */
#include "sim.h"

#include <dlfcn.h>
#include <string.h>

/* hipFile finds the functions of storage.c by this one alone. */
hipError_t hipGetProcAddress(const char *name, void **function, int version, uint64_t flags, int *status) {
    CALL(hipGetProcAddress);
    (void)version, (void)flags;
    Dl_info info;
    bool hidden = setting("ROCM_SIM_NO_AIS", 0) && !strncmp(name, "hipAmdFile", strlen("hipAmdFile"));
    *function = NULL;
    if (!hidden && dladdr((void *)hipGetProcAddress, &info)) {
        void *library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        if (library) {
            *function = dlsym(library, name);
            dlclose(library);
        }
    }
    if (status) *status = *function ? 0 : 1;
    return failed(*function ? hipSuccess : hipErrorNotFound);
}
