// HIP's device language for this machine's C++ compiler: what the simulated hiprtc puts before every kernel.
#pragma once
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <time.h>
#include <tuple>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __HIPCC_RTC__ 1
#define __HIPCC__ 1
#define HIP_VERSION 70051831
#define __host__
#define __device__
#define __global__
#define __constant__
#define __shared__ static thread_local // the blocks of a launch run one after the other, on one thread
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

// clang-format off: each builds on those before it
#include "vectors.h"
#include "threads.h"
#include "launch.h"
#include "warp.h"
#include "atomics.h"
#include "bits.h"
#include "half.h"
