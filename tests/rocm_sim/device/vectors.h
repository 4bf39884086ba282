// Small vectors.
#pragma once

struct dim3 {
    unsigned x, y, z;
};
struct uint3 {
    unsigned x, y, z;
};
#define ROCMSIM_VECTORS(type, name)  \
    struct name##2 { type x, y; };    \
    struct name##3 { type x, y, z; }; \
    struct name##4 { type x, y, z, w; };
ROCMSIM_VECTORS(float, float)
ROCMSIM_VECTORS(double, double)
ROCMSIM_VECTORS(int, int)
#undef ROCMSIM_VECTORS
