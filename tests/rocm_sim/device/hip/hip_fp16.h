// CuPy includes it by this name; all of it is in device.h.
#pragma once
#include "device.h"
