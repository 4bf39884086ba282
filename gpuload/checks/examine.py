"""The examination: asks all there is to ask at once, and puts the answers together."""

from __future__ import annotations

import os

from gpuload.backends import registry
from gpuload.checks import environment, gpu, kernel, libraries, limits, mounts, store, uring
from gpuload.checks.child import TIMEOUT, Answers, Job, ask
from gpuload.checks.gpu import Gpu, Vendor
from gpuload.checks.report import BackendState, MountRow, Report, Section
from gpuload.checks.view import View
from gpuload.errors import NotFoundError
from gpuload.files.paths import path_of
from gpuload.request import Reason


def doctor(path: str | os.PathLike[str] | None = None, *, timeout: float = TIMEOUT) -> Report:
    """Look at what works on this machine, what does not, and how it is mended.

    Nothing is changed, and nothing that is looked at can harm this process: vendors' libraries, io_uring and file
    systems are asked by processes of their own.

    Parameters
    ----------
    path
        A store, or a file: then the report tells whether the fastpath could serve this very one, and by whom.
    timeout
        Seconds until what hangs is given up, and is unknown; where nothing does, it takes about one.

    Returns
    -------
    Report
        Checks, backends and mounts. It prints as a table and shows as HTML in a notebook.

    Raises
    ------
    NotFoundError
        There is nothing at `path`.
    NotLocalError
        `path` is a URL.

    Examples
    --------
    >>> report = gpuload.doctor("air.zarr")  # doctest: +SKIP
    >>> report["p2pdma"].status  # doctest: +SKIP
    <Status.PASS: 'pass'>
    """
    return examine(path, View(), timeout)


def examine(path: str | os.PathLike[str] | None, view: View, timeout: float = TIMEOUT) -> Report:
    """`doctor`, of a system whose files are `view`; `timeout` is in seconds, for all that is asked."""
    name = None if path is None else _located(path)
    gpus = gpu.find(view)
    vendors = frozenset(found.vendor for found in gpus) or frozenset(Vendor)
    answers = ask(_jobs(vendors, name, view), timeout)
    cupy = answers.get("cupy") or {}
    if not gpus and cupy.get("gpus"):  # a simulated one, or a bus that the container does not show
        vendors = frozenset({Vendor.AMD if cupy["hip"] else Vendor.NVIDIA})
    backends = _backends(answers)
    table = mounts.rows(answers)
    sections = _sections(view, gpus, vendors, answers, table)
    if name is None:
        return Report(tuple(sections), backends, table)
    others = [check for section in sections for check in section.checks]
    verdict, checks = store.examined(answers, name, backends, others)
    return Report((Section(name, checks), *sections), backends, table, verdict)


def _located(path: str | os.PathLike[str]) -> str:
    text = path_of(path)
    try:
        os.stat(text)
    except OSError as error:
        raise NotFoundError(error.errno or 0, f"cannot be looked at: {error.strerror}", text) from error
    return os.path.realpath(text)


def _jobs(vendors: frozenset[Vendor], path: str | None, view: View) -> list[Job]:
    """What is asked, apart from each other as far as one may take the other down."""
    names = tuple(entry.name for entry in registry.ENTRIES)
    jobs = [Job("transport", ("ring", *names)), Job("libraries", ("cupy",))]
    jobs += [Job("transport", (entry.name,)) for entry in registry.DIRECT.values()]
    jobs += [Job("libraries", libraries.STEPS[vendor]) for vendor in sorted(vendors)]
    looked = ("mounts",) if path is None else ("store", "mounts")
    return [*jobs, Job("files", looked, (view.root, *(() if path is None else (path,))))]


def _backends(answers: Answers) -> dict[str, BackendState]:
    found = {}
    for name in (*store.FASTPATHS, *(entry.name for entry in registry.ENTRIES)):
        if name in found:
            continue
        said = answers.get(name)
        if said is None:
            found[name] = BackendState(False, Reason.DRIVER_ERROR, answers.why(name))
        else:
            found[name] = BackendState(said["usable"], said["reason"] and Reason(said["reason"]), said["detail"])
    return found


def _sections(
    view: View,
    gpus: tuple[Gpu, ...],
    vendors: frozenset[Vendor],
    answers: Answers,
    table: tuple[MountRow, ...],
) -> list[Section]:
    seen = ", ".join((answers.get("cupy") or {}).get("gpus") or ())
    of_vendor = libraries.checks(answers, gpus, vendors)
    if Vendor.NVIDIA in vendors:
        of_vendor[Vendor.NVIDIA].append(mounts.udev(view, _device(answers, table), limits.in_container(view)))
    unasked = "" if gpus or seen else ", for a machine with such a GPU"
    return [
        Section("GPU", (*gpu.checks(view, gpus, seen or None), libraries.cupy_check(answers, gpus))),
        Section("kernel and drivers", kernel.checks(view, vendors)),
        *(Section(f"{vendor}'s libraries{unasked}", tuple(found)) for vendor, found in of_vendor.items()),
        Section("mounts", (mounts.check(answers, table),)),
        Section("io_uring", uring.checks(answers)),
        Section("limits", limits.checks(view, answers)),
        Section("Python", environment.checks()),
    ]


def _device(answers: Answers, table: tuple[MountRow, ...]) -> tuple[int, int] | None:
    """The drive that is asked about: the store's, or that of the root file system."""
    said = answers.get("store")
    if said and not said["error"]:
        return int(said["device"][0]), int(said["device"][1])
    for row in table:
        if row.mount_point == "/":
            major, _, minor = row.device.partition(":")
            return int(major), int(minor)
    return None
