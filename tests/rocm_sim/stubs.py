"""Generates the C of stubs: functions that answer "not supported", for all that is not simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .libraries import HIP, Library

# What a module with compiled-in kernels calls while it is loaded; it must not fail then.
_LOADING = """\
static void *registered;
void **__hipRegisterFatBinary(const void *binary) { (void)binary; return &registered; }
void __hipUnregisterFatBinary(void **binary) { (void)binary; }
void __hipRegisterFunction(void **binary) { (void)binary; }
"""
_LOADING_NAMES = {"__hipRegisterFatBinary", "__hipUnregisterFatBinary", "__hipRegisterFunction"}

_OF_HIP = """\
struct rocmsim_call { const char *name; long count; _Bool listed; struct rocmsim_call *next; };
int rocmsim_stub(struct rocmsim_call *call);
#define STUB(function) \\
    long function(void) { static struct rocmsim_call call = {.name = #function}; return rocmsim_stub(&call); }
"""

_OF_OTHERS = """\
#include <stdio.h>
#include <stdlib.h>
static long refuse(const char *name) {
    if (getenv("ROCM_SIM_TRACE")) fprintf(stderr, "rocm_sim: %%s is not simulated\\n", name);
    return %d;
}
#define STUB(function) long function(void) { return refuse(#function); }
"""


def source(library: Library, names: Iterable[str]) -> str:
    """The C source of the stubs called `names`."""
    names = sorted(names)
    head = _OF_HIP if library is HIP else _OF_OTHERS % library.refusal
    if library is HIP:
        head += _LOADING
        names = [name for name in names if name not in _LOADING_NAMES]
    return head + "".join(f"STUB({name})\n" for name in names)


def version_script(library: Library, versions: Mapping[str, str]) -> str:
    """The linker script that gives each symbol the version the wheels want, and hides what is internal."""
    public = " ".join(f"{prefix}*;" for prefix in (*library.owns, "rocmsim_"))
    nodes: dict[str, list[str]] = {}
    for name, version in sorted(versions.items()):
        if version:
            nodes.setdefault(version, []).append(name)
    if not nodes:
        return f"{{ global: {public} local: *; }};\n"
    lines = []
    for i, (version, members) in enumerate(sorted(nodes.items())):
        rest = f" {public} local: *;" if i == 0 else ""
        lines.append(f"{version} {{ global: {'; '.join(members)};{rest} }};\n")
    return "".join(lines)
