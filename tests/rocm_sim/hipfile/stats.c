/* Bytes by who moved them, and what lives: for the tests, not part of hipFile. */
#include "sim.h"

#include <string.h>

static uint64_t bytes[STATS];

void served(int how, size_t size) { __atomic_add_fetch(&bytes[how], size, __ATOMIC_RELAXED); }

/* 0 fastpath reads, 1 fastpath writes, 2 fallback reads, 3 fallback writes. */
uint64_t rocmsim_hipfile_stat(int how) { return __atomic_load_n(&bytes[how], __ATOMIC_RELAXED); }

void rocmsim_reset_hipfile_stats(void) {
    for (int how = 0; how < STATS; how++) __atomic_store_n(&bytes[how], 0, __ATOMIC_RELAXED);
}

/* -1: no such kind. */
long rocmsim_hipfile_live(const char *kind) {
    if (!strcmp(kind, "files")) return live_files();
    if (!strcmp(kind, "buffers")) return live_buffers();
    return -1;
}
