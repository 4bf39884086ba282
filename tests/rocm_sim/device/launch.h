// Runs a kernel over its grid, and exports it the way hip/modules.c looks for it.
#pragma once
#include "kernel.h"

namespace rocmsim {
template <class... A> struct arguments {
    using tuple = std::tuple<std::remove_cv_t<std::remove_reference_t<A>>...>;
    void (*kernel)(A...);
    tuple values;

    template <size_t... I> void call(std::index_sequence<I...>) { kernel(std::get<I>(values)...); }
    static void body(void *self) { static_cast<arguments *>(self)->call(std::index_sequence_for<A...>{}); }
};

template <class... A, size_t... I>
static void *pack_each(void (*kernel)(A...), void **parameters, std::index_sequence<I...>) {
    (void)parameters; // of a kernel that has none
    return new arguments<A...>{kernel, {*static_cast<std::remove_reference_t<A> *>(parameters[I])...}};
}

template <class... A> static void *pack(void (*kernel)(A...), void **parameters) {
    return pack_each(kernel, parameters, std::index_sequence_for<A...>{});
}

template <class... A> static void run(void (*)(A...), const unsigned *grid, const unsigned *threads, void *packed) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads[0], threads[1], threads[2]};
    block.body = arguments<A...>::body;
    block.argument = packed;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) run_block();
    delete static_cast<arguments<A...> *>(packed);
}
} // namespace rocmsim

#define ROCMSIM_KERNEL(name, kernel)                                                                \
    extern "C" const rocmsim_kernel rocmsim_kernel_##name = {                                       \
        [](void **parameters) { return rocmsim::pack(kernel, parameters); },                        \
        [](const unsigned *grid, const unsigned *threads, void *packed) {                           \
            rocmsim::run(kernel, grid, threads, packed);                                            \
        },                                                                                          \
    };
