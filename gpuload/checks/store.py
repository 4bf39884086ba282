"""The verdict on one store: file system, block layers, O_DIRECT and alignment of its very files, and who can serve."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gpuload.backends.hipfile import ANY_FILE_SYSTEM
from gpuload.backends.vendor import switch
from gpuload.checks.child import Answers
from gpuload.checks.report import BackendState, Check, Status, Verdict, failed, passed, unknown
from gpuload.planning.aligned import DIRECT_ALIGN
from gpuload.request import Reason

MOVE = "cp -r {path} /data/  # where /data is xfs or ext4 (data=ordered) on a partition or LVM volume of local NVMe"
FASTPATHS = ("hipfile", "cufile")


def examined(
    answers: Answers, path: str, backends: Mapping[str, BackendState], others: Sequence[Check]
) -> tuple[Verdict, tuple[Check, ...]]:
    """The verdict on the store at `path`, and the checks it rests on.

    Parameters
    ----------
    others
        Checks of the machine: where it is no fault of the store, the first that failed says what is to be mended.
    """
    said = answers.get("store")
    if said is None:
        return Verdict(path), (unknown("store", answers.why("store"), f"ls -lR {shlex.quote(path)}"),)
    if said["error"]:
        return Verdict(path), (failed("store", said["error"], f"chmod -R u+rX {shlex.quote(path)}"),)
    hipfile = backends.get("hipfile")
    if said["reason"] == Reason.FILE_SYSTEM and hipfile and hipfile.usable and switch(ANY_FILE_SYSTEM):
        said = {**said, "reason": None}  # reads try it then, too
    found = [_files(said), _file_system(said), _layers(said), _o_direct(said), _alignment(said)]
    verdict = _verdict(said, found, backends, others)
    return verdict, (*found, _summary(verdict, found, others, said))


def reasons(said: Mapping[str, Any]) -> list[Reason]:
    """Why the fastpath cannot serve this store, whichever the backend, as far as it was seen."""
    found = [Reason(said["reason"])] if said["reason"] else []
    if said["o_direct"] == "refused":
        found.append(Reason.ODIRECT_REFUSED)
    if said["nvme"] is False and not found:
        found.append(Reason.P2P_ROUTE)
    return found


def _files(said: Mapping[str, Any]) -> Check:
    if not said["files"]:
        fix = f"ls -R {shlex.quote(said['path'])}  # is it the right folder? metadata are not counted"
        return unknown("store", "there is no data file: what follows is of the folder itself", fix)
    more = "at least " if said["more"] else ""
    files = "1 data file" if said["files"] == 1 else f"{said['files']:,} data files"
    return passed(
        "store",
        f"{more}{files}, {said['bytes']:,} bytes; looked at: {said['sample']} ({said['sample_size']:,} bytes)",
    )


def _file_system(said: Mapping[str, Any]) -> Check:
    name = "store-file-system"
    where = f"{said['file_system'] or 'of unknown type'} at {said['mount_point'] or '?'}"
    if said["reason"] == Reason.FILE_SYSTEM:
        return failed(name, f"{where}: only xfs and ext4 can be read straight into a GPU", _move(said))
    if said["reason"] == Reason.EXT4_JOURNAL_MODE:
        drive = f"/dev/{said['backing'][0].split()[0]}" if said["backing"] else "DEVICE"
        point = shlex.quote(said["mount_point"])
        fix = f"umount {point} && tune2fs -o journal_data_ordered {drive} && mount -o data=ordered {drive} {point}"
        return failed(name, f"{where} does not journal in ordered mode", fix, root=True)
    return passed(name, where)


def _layers(said: Mapping[str, Any]) -> Check:
    name = "store-block-layers"
    stack = " → ".join(said["backing"])
    if not stack:
        return unknown(name, f"/sys shows no block device {said['device'][0]}:{said['device'][1]} below it")
    if said["reason"] == Reason.BLOCK_LAYER:
        return failed(name, f"{stack}: a layer between file system and drive", _move(said))
    if said["nvme"] is False:
        return failed(name, f"{stack}: only NVMe drives on PCIe reach a GPU", _move(said))
    return passed(name, stack) if said["nvme"] else unknown(name, f"{stack}: no drive is to be seen below")


def _o_direct(said: Mapping[str, Any]) -> Check:
    name = "store-o-direct"
    if said["o_direct"] is None:
        return unknown(name, "there is no file to try it on")
    if said["o_direct"] == "refused":
        return failed(name, f"{said['sample']} cannot be opened with O_DIRECT", _move(said))
    if said["o_direct"]:
        return failed(name, f"{said['sample']}: {said['o_direct']}", _move(said))
    return passed(name, f"{said['sample']} was read past the page cache")


def _alignment(said: Mapping[str, Any]) -> Check:
    name = "store-alignment"
    memory, offset = said["dio"]
    asked = f"memory {memory}, offsets {offset}" if offset else "not told by the kernel"
    said_so = f"O_DIRECT wants {asked}; the fastpath reads whole blocks of {max(offset, DIRECT_ALIGN)}"
    if not said["bytes"]:
        return unknown(name, said_so)
    share = said["whole_blocks"] / said["bytes"]
    said_so += f": {share:.1%} of the bytes lie in whole blocks"
    if share < 0.9:
        path = shlex.quote(said["path"])
        fix = f"gpuload pack {path} {path}.packed  # into shards"
        return failed(name, f"{said_so}, for its files are small", fix)
    return passed(name, f"{said_so}, the rest goes by the fallback")


def _verdict(
    said: Mapping[str, Any], found: Sequence[Check], backends: Mapping[str, BackendState], others: Sequence[Check]
) -> Verdict:
    states = {name: backends[name] for name in FASTPATHS if name in backends}
    usable = next((name for name, state in states.items() if state.usable), None)
    against = [str(reason) for reason in reasons(said)]
    if usable is None:
        against += [f"{name}: {state.reason}" for name, state in states.items()]
    elif usable == "cufile" and any(check.name == "udev-database" and check.status is Status.FAIL for check in others):
        against.append(f"cufile: {Reason.DRIVER_ERROR}")  # what reads say when it registers no file
    seen = all(check.status is Status.PASS for check in found if check.name != "store-alignment")
    return Verdict(
        path=said["path"],
        file_system=said["file_system"],
        mount_point=said["mount_point"],
        backing=tuple(said["backing"]),
        o_direct=None if said["o_direct"] is None else not said["o_direct"],
        memory_align=said["dio"][0],
        offset_align=said["dio"][1],
        eligible=False if against else True if seen else None,
        backend=None if against else usable,
        reasons=tuple(against),
    )


def _summary(verdict: Verdict, found: Sequence[Check], others: Sequence[Check], said: Mapping[str, Any]) -> Check:
    name = "store-fastpath"
    if verdict.eligible:
        return passed(name, f"yes, by {verdict.backend}")
    doubts = [check.name for check in found if check.status is not Status.PASS and check.name != "store-alignment"]
    if verdict.eligible is None:
        return unknown(name, f"perhaps, by {verdict.backend}: {', '.join(doubts)} could not be settled")
    first = next((c for c in (*found, *others) if c.status is Status.FAIL and c.name != "store-alignment"), None)
    fix, root = (first.fix or "", first.needs_root) if first else (_move(said), False)
    return failed(name, f"no: {', '.join(verdict.reasons)}", fix, root=root)


def _move(said: Mapping[str, Any]) -> str:
    return MOVE.format(path=shlex.quote(said["path"]))
