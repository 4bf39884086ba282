// IEEE binary16.
#pragma once

struct __half_raw {
    unsigned short x;
};
struct half {
    _Float16 value;
    half() = default;
    half(float from) : value(from) {}
    explicit half(double from) : value(from) {}
    explicit half(bool from) : value(from) {}
    explicit half(int from) : value(from) {}
    explicit half(unsigned from) : value(from) {}
    explicit half(long long from) : value(from) {}
    explicit half(unsigned long long from) : value(from) {}
    explicit half(__half_raw from) { std::memcpy(&value, &from, sizeof value); }
    operator float() const { return value; }
    operator __half_raw() const {
        __half_raw raw;
        std::memcpy(&raw, &value, sizeof raw);
        return raw;
    }
};
typedef half __half;
static inline unsigned short __half_as_ushort(half from) { return __half_raw(from).x; }
static inline half __ushort_as_half(unsigned short from) { return half(__half_raw{from}); }
static inline float __half2float(half from) { return from; }
static inline half __float2half(float from) { return half(from); }
static inline half __float2half_rn(float from) { return half(from); }
static inline bool __hisnan(half from) { return std::isnan(float(from)); }
