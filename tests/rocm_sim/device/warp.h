// Shuffles between the threads of a warp.
#pragma once

namespace rocmsim {
static inline int lane() { return static_cast<int>(thread_number() % warpSize); }
}

template <class T> static inline T __shfl(T value, int source, int width = 64) {
    return rocmsim::exchange(value, rocmsim::lane() / width * width + source % width);
}
template <class T> static inline T __shfl_xor(T value, int mask, int = 64) {
    return rocmsim::exchange(value, rocmsim::lane() ^ mask);
}
template <class T> static inline T __shfl_up(T value, unsigned delta, int width = 64) {
    const int lane = rocmsim::lane(), back = static_cast<int>(delta);
    return rocmsim::exchange(value, lane % width < back ? lane : lane - back);
}
template <class T> static inline T __shfl_down(T value, unsigned delta, int width = 64) {
    const int lane = rocmsim::lane(), ahead = static_cast<int>(delta);
    return rocmsim::exchange(value, lane % width + ahead >= width ? lane : lane + ahead);
}
// The mask of who takes part is not checked.
template <class M, class T, class... A> static inline T __shfl_sync(M, T value, A... rest) {
    return __shfl(value, rest...);
}
template <class M, class T, class... A> static inline T __shfl_xor_sync(M, T value, A... rest) {
    return __shfl_xor(value, rest...);
}
template <class M, class T, class... A> static inline T __shfl_up_sync(M, T value, A... rest) {
    return __shfl_up(value, rest...);
}
template <class M, class T, class... A> static inline T __shfl_down_sync(M, T value, A... rest) {
    return __shfl_down(value, rest...);
}
