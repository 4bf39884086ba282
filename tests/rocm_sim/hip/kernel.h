/* What a compiled kernel exports, as rocmsim_kernel_NAME: made by device/launch.h, called by hip/modules.c. */
#pragma once
#include <stddef.h>

struct rocmsim_kernel {
    void *(*pack)(void **parameters); /* a copy of the arguments, which outlive the launching call */
    void (*run)(const unsigned *grid, const unsigned *block, void *arguments); /* and frees the copy */
};
