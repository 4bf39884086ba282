// All of it is in tuple.h.
#pragma once
#include "tuple.h"
