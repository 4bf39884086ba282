/* What hipFile takes from its environment: HIPFILE_* variables and two functions of the runtime. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <strings.h>

enum switch_name { ALLOW_COMPAT, FORCE_COMPAT, UNSUPPORTED_FS, SWITCHES };
struct setting {
    const char *variable;
    bool otherwise, known, value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct setting settings[SWITCHES] = {
    [ALLOW_COMPAT] = {.variable = "HIPFILE_ALLOW_COMPAT_MODE", .otherwise = true},
    [FORCE_COMPAT] = {.variable = "HIPFILE_FORCE_COMPAT_MODE", .otherwise = false},
    [UNSUPPORTED_FS] = {.variable = "HIPFILE_UNSUPPORTED_FILE_SYSTEMS", .otherwise = false},
};
static ais_function *functions[2];
static bool looked_up;

static bool once(enum switch_name name) {
    pthread_mutex_lock(&lock);
    struct setting *setting = &settings[name];
    if (!setting->known) {
        const char *text = getenv(setting->variable);
        setting->value = setting->otherwise;
        if (text && !strcasecmp(text, "true")) setting->value = true;
        if (text && !strcasecmp(text, "false")) setting->value = false;
        setting->known = true;
    }
    bool value = setting->value;
    pthread_mutex_unlock(&lock);
    return value;
}

bool compat_mode_allowed(void) { return once(ALLOW_COMPAT); }
bool compat_mode_forced(void) { return once(FORCE_COMPAT); }
bool any_file_system(void) { return once(UNSUPPORTED_FS); }

ais_function *ais(bool write) {
    pthread_mutex_lock(&lock);
    if (!looked_up) {
        hipGetProcAddress("hipAmdFileRead", (void **)&functions[0], 0, 0, NULL);
        hipGetProcAddress("hipAmdFileWrite", (void **)&functions[1], 0, 0, NULL);
        looked_up = true;
    }
    ais_function *function = functions[write];
    pthread_mutex_unlock(&lock);
    return function;
}

void forget_configuration(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SWITCHES; i++) settings[i].known = false;
    looked_up = false;
    pthread_mutex_unlock(&lock);
}
