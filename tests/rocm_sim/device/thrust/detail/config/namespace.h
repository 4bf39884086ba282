// The namespace of the little of Thrust that CuPy includes into every kernel.
#pragma once
#define THRUST_NAMESPACE_BEGIN namespace thrust {
#define THRUST_NAMESPACE_END }
