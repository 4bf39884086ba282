// The little of Thrust that CuPy includes into every kernel.
#pragma once
#include <tuple>
#include <utility>

namespace thrust {
using std::get;
using std::make_pair;
using std::make_tuple;
using std::pair;
using std::swap;
using std::tie;
using std::tuple;
} // namespace thrust
