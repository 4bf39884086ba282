// Compiles a kernel source with the system's C++ compiler ($CXX, or g++) into a shared object.
#include "program.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

namespace fs = std::filesystem;

namespace {
// Where device.h lies: beside the folder of this library.
fs::path headers() {
    Dl_info info;
    if (!dladdr(reinterpret_cast<void *>(&compile), &info)) return {};
    return fs::canonical(info.dli_fname).parent_path().parent_path() / "include";
}

// A folder of its own for one compilation, gone afterwards; kept with ROCM_SIM_KEEP.
struct scratch {
    fs::path path;
    scratch() {
        std::string name = (fs::temp_directory_path() / "rocm_sim-XXXXXX").string();
        if (!mkdtemp(name.data())) throw std::system_error(errno, std::generic_category(), name);
        path = name;
    }
    ~scratch() {
        std::error_code ignored;
        if (!std::getenv("ROCM_SIM_KEEP")) fs::remove_all(path, ignored);
    }
    scratch(const scratch &) = delete;
    scratch &operator=(const scratch &) = delete;
};

std::string content(const fs::path &path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_source(const fs::path &path, const program &program) {
    std::ofstream file(path);
    file << "#include \"device.h\"\n#line 1 \"kernel\"\n" << program.source << "\n";
    for (const auto &name : plain_kernels(program.source)) file << "ROCMSIM_KERNEL(" << name << ", " << name << ")\n";
    for (size_t i = 0; i < program.expressions.size(); i++)
        file << "ROCMSIM_KERNEL(" << program.lowered[i] << ", (" << program.expressions[i] << "))\n";
}

// The exit status; what the compiler says goes to `log`.
int run(const std::vector<std::string> &command, const fs::path &log) {
    std::vector<char *> arguments;
    for (const auto &one : command) arguments.push_back(const_cast<char *>(one.c_str()));
    arguments.push_back(nullptr);
    const pid_t child = fork();
    if (!child) {
        if (!freopen(log.c_str(), "w", stderr)) _exit(126);
        execvp(arguments[0], arguments.data());
        perror(arguments[0]);
        _exit(127);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) < 0) return -1;
    return status;
}
} // namespace

hiprtcResult compile(program &program, const std::vector<std::string> &options) {
    const scratch folder;
    const fs::path source = folder.path / "kernel.cpp", object = folder.path / "kernel.so", log = folder.path / "log";
    write_source(source, program);
    const char *compiler = std::getenv("CXX");
    std::vector<std::string> command{compiler ? compiler : "g++", ROCMSIM_KERNEL_FLAGS, "-shared", "-I", headers()};
    for (const auto &option : options)
        if (!option.compare(0, 2, "-I") || !option.compare(0, 2, "-D")) command.push_back(option);
    command.insert(command.end(), {source, "-o", object});
    const int status = run(command, log);
    program.log = content(log);
    if (status) return HIPRTC_ERROR_COMPILATION;
    program.code = content(object);
    return program.code.empty() ? HIPRTC_ERROR_INTERNAL_ERROR : HIPRTC_SUCCESS;
}
