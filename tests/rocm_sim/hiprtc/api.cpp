// The functions of libhiprtc.
#include "program.h"

#include <algorithm>
#include <cstring>
#include <exception>

extern "C" {

hiprtcResult hiprtcVersion(int *major, int *minor) {
    *major = 7;
    *minor = 0;
    return HIPRTC_SUCCESS;
}

const char *hiprtcGetErrorString(hiprtcResult result) {
    switch (result) {
    case HIPRTC_SUCCESS: return "HIPRTC_SUCCESS";
    case HIPRTC_ERROR_INVALID_INPUT: return "HIPRTC_ERROR_INVALID_INPUT";
    case HIPRTC_ERROR_INVALID_PROGRAM: return "HIPRTC_ERROR_INVALID_PROGRAM";
    case HIPRTC_ERROR_COMPILATION: return "HIPRTC_ERROR_COMPILATION";
    case HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID: return "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    default: return "HIPRTC_ERROR_INTERNAL_ERROR";
    }
}

hiprtcResult hiprtcCreateProgram(program **made, const char *source, const char *, int n_headers, const char **,
                                 const char **) {
    if (n_headers) return HIPRTC_ERROR_INVALID_INPUT; // headers in memory are not simulated
    *made = new program{source, {}, {}, {}, {}};
    return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcDestroyProgram(program **program) {
    delete *program;
    *program = nullptr;
    return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcAddNameExpression(program *program, const char *expression) {
    program->lowered.push_back("expression" + std::to_string(program->expressions.size()));
    program->expressions.emplace_back(expression);
    return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetLoweredName(program *program, const char *expression, const char **name) {
    const auto &all = program->expressions;
    const auto found = std::find(all.begin(), all.end(), expression);
    if (found == all.end()) return HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
    *name = program->lowered[static_cast<size_t>(found - all.begin())].c_str();
    return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcCompileProgram(program *program, int n_options, const char **options) {
    try {
        return compile(*program, {options, options + n_options});
    } catch (const std::exception &error) {
        program->log = error.what();
        return HIPRTC_ERROR_INTERNAL_ERROR;
    }
}

hiprtcResult hiprtcGetProgramLogSize(program *program, size_t *size) {
    *size = program->log.size() + 1;
    return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetProgramLog(program *program, char *log) {
    std::strcpy(log, program->log.c_str());
    return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetCodeSize(program *program, size_t *size) {
    *size = program->code.size();
    return program->code.empty() ? HIPRTC_ERROR_INVALID_PROGRAM : HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetCode(program *program, char *code) {
    std::memcpy(code, program->code.data(), program->code.size());
    return HIPRTC_SUCCESS;
}

hiprtcResult hiprtcGetBitcodeSize(program *program, size_t *size) { return hiprtcGetCodeSize(program, size); }
hiprtcResult hiprtcGetBitcode(program *program, char *code) { return hiprtcGetCode(program, code); }
}
