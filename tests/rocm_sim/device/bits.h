// Bits, mathematics and the clock.
#pragma once

using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
using std::signbit;

namespace rocmsim {
template <class To, class From> static inline To same_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
} // namespace rocmsim

static inline float __int_as_float(int value) { return rocmsim::same_bits<float>(value); }
static inline int __float_as_int(float value) { return rocmsim::same_bits<int>(value); }
static inline double __longlong_as_double(long long value) { return rocmsim::same_bits<double>(value); }
static inline long long __double_as_longlong(double value) { return rocmsim::same_bits<long long>(value); }
template <class T> static inline T __ldg(const T *at) { return *at; }
static inline int __popc(unsigned value) { return __builtin_popcount(value); }
static inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
static inline int __clz(int value) { return value ? __builtin_clz(static_cast<unsigned>(value)) : 32; }
static inline int __clzll(long long value) {
    return value ? __builtin_clzll(static_cast<unsigned long long>(value)) : 64;
}
static inline int __ffs(int value) { return __builtin_ffs(value); }

// Ticks of 0.5 ns, about what a GPU's clock has. Who asks for the time wants it to pass: the CPU is for others meanwhile.
static inline long long clock64() {
    timespec now, nap = {0, 100000};
    nanosleep(&nap, nullptr);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 2 * (now.tv_sec * 1000000000LL + now.tv_nsec);
}
