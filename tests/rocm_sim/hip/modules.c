/* Modules and kernels: a code object of the simulated hiprtc is a shared object of this machine. */
#include "kernel.h"
#include "sim.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BLOCK = 1024 };
struct module {
    void *handle;
    void *globals[16]; /* variables that callers asked for: device memory to them */
    int n_globals;
};

/* Through a file of its own: the loader tells objects apart by device and inode, so a descriptor's path would not do. */
static void *load(const void *image, size_t size) {
    const char *folder = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/rocm_sim-XXXXXX", folder && *folder ? folder : "/tmp");
    int file = mkstemp(path);
    if (file < 0) return NULL;
    void *handle = NULL;
    if (write(file, image, size) == (ssize_t)size) {
        handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle) fprintf(stderr, "rocm_sim: %s\n", dlerror());
    }
    close(file);
    unlink(path);
    return handle;
}

hipError_t hipModuleLoadData(struct module **made, const void *image) {
    CALL(hipModuleLoadData);
    const Elf64_Ehdr *header = image;
    if (!made || !image || memcmp(header->e_ident, ELFMAG, SELFMAG)) return failed(hipErrorInvalidImage);
    /* The caller does not say how long the image is; an object ends with its table of sections. */
    void *handle = load(image, header->e_shoff + (size_t)header->e_shentsize * header->e_shnum);
    if (!handle) return failed(hipErrorInvalidImage);
    *made = calloc(1, sizeof **made);
    (*made)->handle = handle;
    return hipSuccess;
}

hipError_t hipModuleUnload(struct module *module) {
    CALL(hipModuleUnload);
    struct block block;
    if (!module) return failed(hipErrorInvalidHandle);
    synchronize_all();
    for (int i = 0; i < module->n_globals; i++) take_block(module->globals[i], DEVICE, &block);
    dlclose(module->handle);
    free(module);
    return hipSuccess;
}

hipError_t hipModuleGetFunction(const struct rocmsim_kernel **kernel, struct module *module, const char *name) {
    CALL(hipModuleGetFunction);
    char symbol[4096];
    snprintf(symbol, sizeof symbol, "rocmsim_kernel_%s", name);
    *kernel = dlsym(module->handle, symbol);
    return failed(*kernel ? hipSuccess : hipErrorNotFound);
}

hipError_t hipModuleGetGlobal(void **address, size_t *size, struct module *module, const char *name) {
    CALL(hipModuleGetGlobal);
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    Dl_info info;
    const ElfW(Sym) *symbol;
    struct block block;
    char *variable = dlsym(module->handle, name);
    if (!variable || !dladdr1(variable, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
        return failed(hipErrorNotFound);
    pthread_mutex_lock(&lock);
    bool known = block_of(variable, &block);
    if (!known && module->n_globals < (int)(sizeof module->globals / sizeof *module->globals)) {
        add_block((struct block){variable, variable, symbol->st_size, DEVICE, current_device(), false, 0, NULL});
        module->globals[module->n_globals++] = variable;
        known = true;
    }
    pthread_mutex_unlock(&lock);
    if (!known) return failed(hipErrorOutOfMemory);
    if (address) *address = variable;
    if (size) *size = symbol->st_size;
    return hipSuccess;
}

hipError_t hipFuncGetAttribute(int *value, int attribute, const struct rocmsim_kernel *kernel) {
    CALL(hipFuncGetAttribute);
    if (!kernel) return failed(hipErrorInvalidHandle);
    *value = attribute == 0 ? MAX_BLOCK : 0; /* 0: the largest block of threads */
    return hipSuccess;
}

struct launch {
    const struct rocmsim_kernel *kernel;
    unsigned grid[3], block[3];
    void *arguments;
};

static void run_kernel(void *data) {
    struct launch *launch = data;
    kernels_may_reach(true);
    launch->kernel->run(launch->grid, launch->block, launch->arguments);
    kernels_may_reach(false);
}

hipError_t hipModuleLaunchKernel(const struct rocmsim_kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void *handle,
                                 void **parameters, void **extra) {
    CALL(hipModuleLaunchKernel);
    struct stream *stream = stream_of(handle);
    if (!kernel || !stream) return failed(hipErrorInvalidHandle);
    if (extra) return failed(hipErrorNotSupported);
    size_t threads = (size_t)block_x * block_y * block_z;
    if (!threads || threads > MAX_BLOCK || !grid_x || !grid_y || !grid_z || shared > 65536)
        return failed(hipErrorInvalidConfiguration);
    struct launch *launch = malloc(sizeof *launch);
    *launch = (struct launch){
        kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, kernel->pack(parameters),
    };
    submit(stream, run_kernel, launch, (struct dependency){0});
    return hipSuccess;
}
