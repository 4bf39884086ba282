// Atomic operations; kernels of two streams run on two CPU threads.
#pragma once

namespace rocmsim {
template <class T, class F> static inline T update(T *at, F change) {
    T old, wanted;
    __atomic_load(at, &old, __ATOMIC_SEQ_CST);
    do wanted = change(old);
    while (!__atomic_compare_exchange(at, &old, &wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
} // namespace rocmsim

template <class T, class U> static inline T atomicAdd(T *at, U value) {
    return rocmsim::update(at, [=](T old) { return T(old + value); });
}
template <class T, class U> static inline T atomicMax(T *at, U value) {
    return rocmsim::update(at, [=](T old) { return old < T(value) ? T(value) : old; });
}
template <class T, class U> static inline T atomicMin(T *at, U value) {
    return rocmsim::update(at, [=](T old) { return T(value) < old ? T(value) : old; });
}
template <class T, class U> static inline T atomicExch(T *at, U value) {
    return rocmsim::update(at, [=](T) { return T(value); });
}
template <class T> static inline T atomicCAS(T *at, T expected, T value) {
    return rocmsim::update(at, [=](T old) { return old == expected ? value : old; });
}
