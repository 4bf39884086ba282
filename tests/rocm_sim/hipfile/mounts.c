/* Which file systems the fastpath takes: xfs, and ext4 with data=ordered, which it has when it does not say. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

bool is_supported_fs(unsigned major, unsigned minor) {
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[4096], wanted[32], device[32], type[64], options[1024];
    bool supported = false;
    if (!mounts) return false;
    snprintf(wanted, sizeof wanted, "%u:%u", major, minor);
    while (fgets(line, sizeof line, mounts)) {
        char *end = strstr(line, " - ");
        if (!end || sscanf(line, "%*d %*d %31s", device) != 1 || strcmp(device, wanted)) continue;
        if (sscanf(end, " - %63s %*s %1023s", type, options) != 2) continue;
        char *mode = strstr(options, "data=");
        bool ordered = !mode || !strncmp(mode, "data=ordered", strlen("data=ordered"));
        supported = !strcmp(type, "xfs") || (!strcmp(type, "ext4") && ordered);
        break;
    }
    fclose(mounts);
    return supported;
}
