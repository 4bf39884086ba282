/* What lives, for tests that look for leaks. */
#include "sim.h"

#include <string.h>

/* -1: no such kind. */
long rocmsim_live(const char *kind) {
    if (!strcmp(kind, "device_memory")) return live_blocks(DEVICE, true);
    if (!strcmp(kind, "managed_memory")) return live_blocks(MANAGED, true);
    if (!strcmp(kind, "pinned_memory")) return live_blocks(HOST, true);
    if (!strcmp(kind, "registered_memory")) return live_blocks(HOST, false);
    if (!strcmp(kind, "streams")) return live_streams();
    if (!strcmp(kind, "events")) return live_events();
    return -1;
}
