/* Counts every call of the simulated runtime, and injects faults into them.
 *
 * A fault is NAME:ACTION=VALUE[@N][+]: into call N of NAME alone, from call N on with a plus, into every call without
 * @N. Several are separated by commas. They come from ROCM_SIM_FAULT when the library is loaded, and from
 * rocmsim_fault() afterwards. README.md lists the actions. */
#include "sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FAULTS = 64 };
struct fault {
    char name[96], action[32];
    long value, at;
    bool onward;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rocmsim_call *calls;
static struct fault faults[MAX_FAULTS];
static int n_faults;
static __thread hipError_t last_error;

long rocmsim_enter(struct rocmsim_call *call) {
    if (!__atomic_load_n(&call->listed, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        if (!call->listed) {
            call->next = calls;
            calls = call;
            __atomic_store_n(&call->listed, true, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&lock);
    }
    return __atomic_add_fetch(&call->count, 1, __ATOMIC_RELAXED);
}

long rocmsim_count(const char *name) {
    long total = 0;
    pthread_mutex_lock(&lock);
    for (struct rocmsim_call *call = calls; call; call = call->next)
        if (!strcmp(call->name, name)) total += __atomic_load_n(&call->count, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return total;
}

void rocmsim_reset_counts(void) {
    pthread_mutex_lock(&lock);
    for (struct rocmsim_call *call = calls; call; call = call->next)
        __atomic_store_n(&call->count, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

/* Writes "name count" lines of what was called; returns the length it has or would have. */
size_t rocmsim_report(char *text, size_t size) {
    size_t length = 0;
    pthread_mutex_lock(&lock);
    for (struct rocmsim_call *call = calls; call; call = call->next) {
        long count = __atomic_load_n(&call->count, __ATOMIC_RELAXED);
        if (!count) continue;
        bool fits = length < size;
        length += (size_t)snprintf(fits ? text + length : NULL, fits ? size - length : 0, "%s %ld\n", call->name, count);
    }
    pthread_mutex_unlock(&lock);
    return length;
}

static bool parse(const char *text, struct fault *fault) {
    int used = 0;
    *fault = (struct fault){.at = 1, .onward = true};
    if (sscanf(text, "%95[^:,]:%31[^=]=%ld%n", fault->name, fault->action, &fault->value, &used) < 3) return false;
    text += used;
    if (*text != '@') return !*text;
    if (sscanf(text, "@%ld%n", &fault->at, &used) < 1 || fault->at < 1) return false;
    text += used;
    fault->onward = *text == '+';
    return !text[fault->onward];
}

/* Replaces all faults; NULL or "" takes them away. Returns 0, or -1 when `specification` is none: then nothing changes. */
int rocmsim_fault(const char *specification) {
    struct fault parsed[MAX_FAULTS];
    int n = 0;
    char *rest = NULL, *text = strdup(specification ? specification : "");
    bool good = true;
    for (char *one = strtok_r(text, ", ", &rest); one && good; one = strtok_r(NULL, ", ", &rest))
        good = n < MAX_FAULTS && parse(one, &parsed[n++]);
    free(text);
    if (!good) return -1;
    pthread_mutex_lock(&lock);
    memcpy(faults, parsed, sizeof *faults * (size_t)n);
    __atomic_store_n(&n_faults, n, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    wake_streams();
    return 0;
}

__attribute__((constructor)) static void faults_of_environment(void) {
    const char *specification = getenv("ROCM_SIM_FAULT");
    if (!specification || !rocmsim_fault(specification)) return;
    fprintf(stderr, "rocm_sim: ROCM_SIM_FAULT=%s is no list of NAME:ACTION=VALUE[@N][+]\n", specification);
    abort();
}

/* Is there a fault for call `n` of `name`? */
bool rocmsim_find_fault(const char *name, const char *action, long n, long *value) {
    if (!__atomic_load_n(&n_faults, __ATOMIC_ACQUIRE)) return false;
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_faults && !found; i++) {
        const struct fault *fault = &faults[i];
        if (strcmp(fault->name, name) || strcmp(fault->action, action)) continue;
        found = n == fault->at || (fault->onward && n > fault->at);
        if (found) *value = fault->value;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Counts a call; true when it must return `error` at once. */
bool faulted(struct rocmsim_call *call, hipError_t *error) {
    long n = rocmsim_enter(call), value;
    if (rocmsim_find_fault(call->name, "delay", n, &value)) usleep((useconds_t)value);
    if (!rocmsim_find_fault(call->name, "err", n, &value)) return false;
    *error = (hipError_t)value;
    return true;
}

/* What a generated stub does. */
hipError_t rocmsim_stub(struct rocmsim_call *call) {
    hipError_t error = hipErrorNotSupported;
    faulted(call, &error);
    if (setting("ROCM_SIM_TRACE", 0)) fprintf(stderr, "rocm_sim: %s is not simulated\n", call->name);
    return failed(error);
}

hipError_t failed(hipError_t error) {
    if (error) last_error = error;
    return error;
}

hipError_t hipGetLastError(void) {
    hipError_t error = last_error;
    last_error = hipSuccess;
    return error;
}

hipError_t hipPeekAtLastError(void) { return last_error; }

long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}
