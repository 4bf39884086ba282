"""CuPy's kernels, compiled for the CPU, compute what they compute on a GPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rocm

REVERSE = r"""
extern "C" __global__ void reverse(const int* from, int* to, int n, unsigned* blocks) {
  __shared__ int part[64];
  int t = threadIdx.x, at = blockIdx.x * blockDim.x + t;
  part[t] = from[at];
  __syncthreads();
  int last = blockDim.x - 1 - t;
  to[(gridDim.x - 1 - blockIdx.x) * blockDim.x + t] = part[last];
  if (t == 0) atomicAdd(blocks, 1u);
}
"""
SUM_OF_WARP = r"""
extern "C" __global__ void sums(const float* from, float* to) {
  float v = from[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = warpSize / 2; step > 0; step /= 2) v += __shfl_down(v, step);
  if (threadIdx.x % warpSize == 0) to[(blockIdx.x * blockDim.x + threadIdx.x) / warpSize] = v;
}
"""


def test_elementwise_and_broadcasting(cupy: ModuleType) -> None:
    a, b = np.arange(12, dtype="f4").reshape(3, 4), np.arange(4, dtype="f4")
    got = cupy.asarray(a) * 2 + cupy.asarray(b)
    assert got.device.id == 0
    assert (got.get() == a * 2 + b).all()


def test_a_reduction_over_several_blocks(cupy: ModuleType) -> None:
    values = np.random.default_rng(1).integers(-1000, 1000, (7, 5000))
    assert (cupy.asarray(values).sum(axis=1).get() == values.sum(axis=1)).all()


def test_a_raw_kernel_with_shared_memory_and_barriers(cupy: ModuleType) -> None:
    n = 64 * 5
    kernel = cupy.RawKernel(REVERSE, "reverse")
    source, to, blocks = cupy.arange(n, dtype="i4"), cupy.zeros(n, "i4"), cupy.zeros(1, "u4")
    kernel((5,), (64,), (source, to, np.int32(n), blocks))
    assert (to.get() == np.arange(n)[::-1]).all()
    assert blocks.get() == [5]


def test_a_raw_kernel_with_shuffles(cupy: ModuleType) -> None:
    values = np.arange(4 * 128, dtype="f4")
    sums = cupy.zeros(len(values) // 64, "f4")
    cupy.RawKernel(SUM_OF_WARP, "sums")((4,), (128,), (cupy.asarray(values), sums))
    assert (sums.get() == values.reshape(-1, 64).sum(axis=1)).all()


@pytest.mark.parametrize("dtype", ["?", "f2", "c8", ">i4"])
def test_types(cupy: ModuleType, dtype: str) -> None:
    values = np.arange(10).astype(np.dtype(dtype).newbyteorder("="))
    assert (cupy.asarray(values)[::-2].copy().get() == values[::-2]).all()


def test_a_source_that_does_not_compile(cupy: ModuleType) -> None:
    with pytest.raises(cupy.cuda.compiler.CompileException, match="no_such_function"):
        cupy.RawKernel('extern "C" __global__ void f() { no_such_function(); }', "f").compile()


def test_a_kernel_that_is_not_in_its_module(cupy: ModuleType) -> None:
    # Neither a comment nor a string declares a kernel.
    source = '// __global__ void g()\nextern "C" __global__ void f(int* x) { x[0] = sizeof("__global__ void h("); }'
    module = cupy.RawModule(code=source)
    assert module.get_function("f")
    for name in "gh":
        with pytest.raises(cupy.cuda.driver.CUDADriverError, match="NotFound"):
            module.get_function(name)


def test_a_launch_that_is_too_large(cupy: ModuleType) -> None:
    kernel = cupy.RawKernel('extern "C" __global__ void f(int* x) {}', "f")
    with pytest.raises(cupy.cuda.driver.CUDADriverError, match="InvalidConfiguration"):
        kernel((1,), (1025,), (cupy.zeros(1, "i4"),))


def test_arguments_outlive_the_launching_call(cupy: ModuleType, rocm_sim: Any) -> None:
    kernel = cupy.RawKernel('extern "C" __global__ void f(int* x, int v) { x[0] = v; }', "f")
    x = cupy.zeros(1, "i4")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    kernel.compile()
    with rocm_sim.held(), stream:
        kernel((1,), (1,), (x, np.int32(7)))
        kernel((1,), (1,), (x, np.int32(8)))
    stream.synchronize()
    assert x.get() == [8]
