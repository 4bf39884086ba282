// A kernel source on its way to a code object.
#pragma once
#include <string>
#include <vector>

enum hiprtcResult {
    HIPRTC_SUCCESS = 0,
    HIPRTC_ERROR_INVALID_INPUT = 3,
    HIPRTC_ERROR_INVALID_PROGRAM = 4,
    HIPRTC_ERROR_COMPILATION = 6,
    HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID = 10,
    HIPRTC_ERROR_INTERNAL_ERROR = 11,
};

struct program {
    std::string source, log, code;
    std::vector<std::string> expressions; // of kernels that the caller names, such as "f<int>"
    std::vector<std::string> lowered;     // what they are called in the code object
};

// Names of the kernels in `source` that can be named without arguments: no templates.
std::vector<std::string> plain_kernels(const std::string &source);

// Compiles for this machine, with -I and -D of `options`; fills code and log.
hiprtcResult compile(program &program, const std::vector<std::string> &options);
