"""hipFile: who serves a read or write, to the byte, and what it answers when something is wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.rocm

KIB = 1024
INVALID_VALUE, HANDLE_NOT_REGISTERED, ALREADY_REGISTERED, INTERNAL = 5022, 5027, 5028, 5030


@pytest.fixture
def direct(tmp_path: Path) -> None:
    """Skips where the test's files cannot be opened with O_DIRECT."""
    try:
        os.close(os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        pytest.skip(f"no O_DIRECT on {tmp_path}: {error}")


@pytest.fixture
def strict(rocm_sim: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """hipFile without its fallback."""
    monkeypatch.setenv("HIPFILE_ALLOW_COMPAT_MODE", "false")


Opens, Writes = Callable[..., Any], Callable[[int], tuple[Path, np.ndarray]]


def moved(**bytes_: int) -> dict[str, int]:
    return {"fast_read": 0, "fast_write": 0, "fallback_read": 0, "fallback_write": 0} | bytes_


@pytest.mark.usefixtures("direct", "strict")
def test_a_read_by_the_fastpath(opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any) -> None:
    path, content = random_file(64 * KIB)
    array = cupy.empty(128 * KIB, np.uint8)
    file = opened(path)
    copied = rocm_sim.copied()
    assert file.read(array, 32 * KIB, 16 * KIB, 8 * KIB)[0] == 32 * KIB
    assert rocm_sim.stats() == moved(fast_read=32 * KIB)
    assert rocm_sim.copied() == copied
    got = array.get()
    assert (got[8 * KIB : 40 * KIB] == content[16 * KIB : 48 * KIB]).all()
    assert (got[: 8 * KIB] == 0xA5).all()
    assert (got[40 * KIB :] == 0xA5).all()
    assert (rocm_sim.count("hipFileRead"), rocm_sim.count("hipAmdFileRead")) == (1, 1)


@pytest.mark.usefixtures("direct", "strict")
def test_a_write_by_the_fastpath(opened: Opens, tmp_path: Path, cupy: ModuleType, rocm_sim: Any) -> None:
    content = np.random.default_rng(2).integers(0, 256, 16 * KIB, np.uint8)
    file = opened(tmp_path / "new")
    assert file.write(cupy.asarray(content), 12 * KIB, 4 * KIB, 4 * KIB)[0] == 12 * KIB
    assert rocm_sim.stats() == moved(fast_write=12 * KIB)
    assert (tmp_path / "new").read_bytes() == bytes(4 * KIB) + content[4 * KIB :].tobytes()


def test_the_fallback_serves_what_is_not_aligned(
    opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any
) -> None:
    path, content = random_file(10_001)
    array = cupy.empty(10_001, np.uint8)
    file = opened(path)
    assert file.read(array, 10_001)[0] == 10_001
    assert (array.get() == content).all()
    assert file.read(array, 10_001, 10_000)[0] == 1  # over the end of the file
    assert file.read(array, 10, 20_000)[0] == 0
    assert rocm_sim.stats() == moved(fallback_read=10_002)
    assert rocm_sim.count("hipAmdFileRead") == 0
    assert file.write(array, 9999, 1)[0] == 9999
    assert rocm_sim.stats() == moved(fallback_read=10_002, fallback_write=9999)


@pytest.mark.usefixtures("strict")
def test_without_the_fallback_what_is_not_aligned_fails(
    opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any
) -> None:
    file = opened(random_file(8 * KIB)[0])
    array = cupy.empty(8 * KIB, np.uint8)
    for size, offset in [(4095, 0), (4096, 1), (1, 1 << 30)]:
        assert file.read(array, size, offset)[0] == -INTERNAL
    assert rocm_sim.stats() == moved()
    assert rocm_sim.count("hipAmdFileRead") == 0


@pytest.mark.usefixtures("direct")
def test_the_kernel_driver_wants_whole_pages(
    opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any
) -> None:
    file = opened(random_file(8 * KIB)[0])
    # Where the disk takes 512, hipFile hands it on, the driver refuses, and nobody tries again.
    answer = file.read(cupy.empty(8 * KIB, np.uint8), 512, 512)
    if rocm_sim.count("hipAmdFileRead") == 0:
        pytest.skip("the disk wants more than 512 here, so hipFile declines by itself")
    assert answer[:2] == (-1, errno.EINVAL)
    assert rocm_sim.stats() == moved()


@pytest.mark.usefixtures("direct")
def test_a_fastpath_read_over_the_end_of_the_file(
    opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(random_file(6000)[0])
    array = cupy.empty(8 * KIB, np.uint8)
    assert file.read(array, 8 * KIB)[:2] == (-1, errno.EIO)
    assert file.read(array, 4 * KIB)[0] == 4 * KIB
    monkeypatch.setenv("ROCM_SIM_SHORT_EIO", "0")
    assert file.read(array, 8 * KIB)[0] == 6000


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("code", [errno.ENODEV, errno.EREMOTEIO])
def test_no_route_is_tried_on_the_fallback(
    opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any, code: int
) -> None:
    path, content = random_file(8 * KIB)
    array = cupy.empty(8 * KIB, np.uint8)
    rocm_sim.fault(f"hipAmdFileRead:status={-code}")
    assert opened(path).read(array, 8 * KIB)[0] == 8 * KIB
    assert (array.get() == content).all()
    assert rocm_sim.stats() == moved(fallback_read=8 * KIB)


@pytest.mark.usefixtures("direct", "strict")
@pytest.mark.parametrize("code", [errno.ENODEV, errno.EREMOTEIO, errno.EIO])
def test_no_route_without_the_fallback(
    opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any, code: int
) -> None:
    file = opened(random_file(8 * KIB)[0])
    rocm_sim.fault(f"hipAmdFileRead:status={-code}@2")
    array = cupy.empty(8 * KIB, np.uint8)
    assert file.read(array, 4 * KIB)[0] == 4 * KIB
    assert file.read(array, 4 * KIB)[:2] == (-1, code)
    assert file.read(array, 4 * KIB)[0] == 4 * KIB
    assert rocm_sim.stats() == moved(fast_read=8 * KIB)


@pytest.mark.usefixtures("direct")
def test_injected_answers(opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any) -> None:
    file = opened(random_file(8 * KIB)[0])
    array = cupy.empty(8 * KIB, np.uint8)
    for fault, expected in [
        ("hipFileRead:errno=5", (-1, errno.EIO)),
        ("hipFileRead:ret=5011", (-5011, 0)),
        ("hipFileRead:short=4096", (4096, 0)),
        ("hipAmdFileRead:short=4096", (4096, 0)),
        ("hipAmdFileRead:err=719", (-719, 0)),
    ]:
        rocm_sim.fault(fault)
        answer = file.read(array, 8 * KIB)
        assert answer[0] == expected[0], fault
        if expected[0] == -1:
            assert answer[1] == expected[1], fault
    rocm_sim.fault("hipFileRead:decline=1@7")
    before = rocm_sim.stats()
    assert [file.read(array, 4 * KIB)[0] for _ in range(3)] == [4 * KIB] * 3
    assert rocm_sim.count("hipFileRead") == 8
    after = rocm_sim.stats()
    assert after["fallback_read"] - before["fallback_read"] == 4 * KIB
    assert after["fast_read"] - before["fast_read"] == 8 * KIB


def test_files_on_a_file_system_without_direct_reads(
    opened: Opens, cupy: ModuleType, rocm_sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("/dev/shm") / f"rocm_sim-{os.getpid()}"
    try:
        path.write_bytes(bytes(8 * KIB))
    except OSError as error:
        pytest.skip(f"no tmpfs at /dev/shm: {error}")
    try:
        file = opened(path)
        assert file.error == 0
        assert file.read(cupy.empty(8 * KIB, np.uint8), 8 * KIB)[0] == 8 * KIB
        assert rocm_sim.stats()["fast_read"] + rocm_sim.stats()["fallback_read"] == 8 * KIB
    finally:
        path.unlink()


def test_a_switch_is_looked_up_once(
    opened: Opens, random_file: Writes, cupy: ModuleType, rocm_sim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(random_file(8 * KIB)[0])
    array = cupy.empty(8 * KIB, np.uint8)
    assert file.read(array, 100)[0] == 100
    monkeypatch.setenv("HIPFILE_ALLOW_COMPAT_MODE", "false")  # too late
    assert file.read(array, 100)[0] == 100
    file.close()
    rocm_sim.reset()
    file.__init__(file.hipfile, random_file(8 * KIB)[0])
    assert file.read(array, 100)[0] == -INTERNAL


def test_registrations(
    opened: Opens, random_file: Writes, hipfile: ModuleType, cupy: ModuleType, rocm_sim: Any
) -> None:
    assert hipfile.hipFileUseCount()[0] == 0
    descriptors = len(os.listdir("/proc/self/fd"))
    file = opened(random_file(8 * KIB)[0])
    assert hipfile.hipFileUseCount()[0] == 1
    assert len(os.listdir("/proc/self/fd")) in (descriptors + 1, descriptors + 2)  # the second one where O_DIRECT works
    assert rocm_sim.live()["files"] == 1
    description = hipfile.hipFileDescr()
    description.type = hipfile.hipFileFileHandleType.hipFileHandleTypeOpaqueFD
    description.handle.fd = file.descriptor
    assert hipfile.hipFileHandleRegister(description)[0].err == ALREADY_REGISTERED
    array = cupy.empty(8 * KIB, np.uint8)
    hipfile.hipFileHandleDeregister(file.handle)
    assert rocm_sim.live()["files"] == 0
    assert file.read(array, 4 * KIB)[0] == -HANDLE_NOT_REGISTERED
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1


def test_registered_buffers(
    opened: Opens, random_file: Writes, hipfile: ModuleType, cupy: ModuleType, rocm_sim: Any
) -> None:
    errors = hipfile.hipFileOpError
    file = opened(random_file(8 * KIB)[0])
    array, memory = cupy.empty(8 * KIB, np.uint8), np.empty(4096, np.uint8)
    assert hipfile.hipFileBufRegister(array.data.ptr, 4 * KIB, 0)[0].err == 0
    assert rocm_sim.live()["buffers"] == 1
    assert hipfile.hipFileBufRegister(array.data.ptr, 4 * KIB, 0)[0].err == errors.hipFileMemoryAlreadyRegistered
    assert file.read(array, 4 * KIB)[0] == 4 * KIB
    assert file.read(array, 8 * KIB)[0] == -INVALID_VALUE  # more than is registered
    assert hipfile.hipFileBufDeregister(array.data.ptr)[0].err == 0
    assert hipfile.hipFileBufDeregister(array.data.ptr)[0].err == errors.hipFileMemoryNotRegistered
    assert hipfile.hipFileBufRegister(memory.ctypes.data, 4096, 0)[0].err == errors.hipFileHipMemoryTypeInvalid
    assert rocm_sim.live()["buffers"] == 0


@pytest.mark.parametrize("call", ["hipFileHandleRegister", "hipFileBufRegister", "hipFileDriverOpen"])
def test_a_failed_registration_leaves_nothing(
    opened: Opens, random_file: Writes, hipfile: ModuleType, cupy: ModuleType, rocm_sim: Any, call: str
) -> None:
    rocm_sim.fault(f"{call}:ret=5030")
    path, _ = random_file(8 * KIB)
    array = cupy.empty(8 * KIB, np.uint8)
    before = rocm_sim.live()
    if call == "hipFileHandleRegister":
        assert opened(path).error == INTERNAL
    elif call == "hipFileBufRegister":
        assert hipfile.hipFileBufRegister(array.data.ptr, 4 * KIB, 0)[0].err == INTERNAL
    else:
        assert hipfile.hipFileDriverOpen()[0].err == INTERNAL
        assert hipfile.hipFileUseCount()[0] == 0
    assert rocm_sim.live() == before


def test_the_driver_closes_with_its_last_user(
    hipfile: ModuleType, opened: Opens, random_file: Writes, rocm_sim: Any
) -> None:
    assert hipfile.hipFileDriverOpen()[0].err == 0
    assert hipfile.hipFileDriverOpen()[0].err == 0
    file = opened(random_file(8 * KIB)[0])
    assert hipfile.hipFileDriverClose()[0].err == 0
    assert rocm_sim.live()["files"] == 1
    assert hipfile.hipFileDriverClose()[0].err == 0
    assert rocm_sim.live()["files"] == 0
    assert hipfile.hipFileDriverClose()[0].err == hipfile.hipFileOpError.hipFileDriverNotInitialized
    file.error = -1  # its handle went with the driver


def test_the_friendly_layer(random_file: Writes, cupy: ModuleType, rocm_sim: Any) -> None:
    from rocm import hipfile

    path, content = random_file(8 * KIB)
    array = cupy.empty(8 * KIB, np.uint8)
    buffer = hipfile.Buffer(array.data.ptr, array.nbytes, 0)
    rocm_sim.fault("hipFileRead:errno=5@2")
    with buffer, hipfile.FileHandle(str(path), os.O_RDONLY) as file:
        assert file.read(buffer, 8 * KIB, 0, 0) == 8 * KIB
        with pytest.raises(OSError, match="Input/output error"):
            file.read(buffer, 8 * KIB, 0, 0)
    assert (array.get() == content).all()
