"""Forked and spawned children, and the end of the interpreter with reads under way."""

from __future__ import annotations

from typing import Any

import pytest

BACKENDS = ["io_uring", "posix"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forked_child_reads_while_the_parent_does(backend: str, python: Any, tmp_path: Any) -> None:
    script = """
backend = sys.argv[2]
other = {"io_uring": "posix", "posix": "io_uring"}[backend]
config.set({"backend": backend, "poison": True, "batch_bytes": 64 << 10})
folder = Path(sys.argv[1])
data = np.arange(1 << 16, dtype="<i8")
arrays = [t.Stored(folder / kind, data, (4096,), kind=kind) for kind in ("raw", "zlib", "shard")]
for array in arrays:
    array.check()
stop = threading.Event()
rounds, errors = [], []
def read():
    try:
        while not stop.is_set():
            for array in arrays:
                array.check()
            rounds.append(1)
    except BaseException as error:
        errors.append(error)
threads = [threading.Thread(target=read) for _ in range(2)]
for thread in threads:
    thread.start()
children = []
for turn in range(4):
    while len(rounds) < turn:
        pass
    io = transfer.io_thread()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            assert transfer.io_thread() is not io
            assert len(reader.handle_cache()) == 0
            for name in (backend, other):
                with config.set(backend=name):
                    for array in arrays:
                        array.check()
            assert t.lent() == 0
            assert transfer.io_thread() is not io
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        os._exit(code)
    children.append(pid)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
before = len(rounds)
while len(rounds) < before + 3 and not errors:
    pass
stop.set()
for thread in threads:
    thread.join()
assert codes == [0] * 4, codes
assert not errors, errors
assert transfer.io_thread() is io, "the parent's thread was disturbed"
print("all right")
"""
    assert python(script, tmp_path, backend) == "all right"


def test_a_child_that_ends_normally_leaves_the_parent_alone(python: Any, tmp_path: Any) -> None:
    script = """
array = t.Stored(Path(sys.argv[1]), np.arange(1000), (100,))
shard = t.Stored(Path(sys.argv[1]) / "s", np.arange(1000), (100,), kind="shard")
array.check(), shard.check()
pid = os.fork()
if pid == 0:
    array.check(), shard.check()
    sys.exit(0)  # with all that runs at exit
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
pid = os.fork()
if pid == 0:
    sys.exit(0)  # without having read
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
array.check(), shard.check()
print("fine")
"""
    assert python(script, tmp_path) == "fine"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_processes_read(method: str, tmp_path: Any) -> None:
    import subprocess
    import sys
    from pathlib import Path

    program = tmp_path / "program.py"
    program.write_text(
        f"""
import importlib.util, multiprocessing, sys
from pathlib import Path
import numpy as np
specification = importlib.util.spec_from_file_location("t", {str(Path(__file__).parent / "conftest.py")!r})
t = importlib.util.module_from_spec(specification)
specification.loader.exec_module(t)
data = np.arange(4000).reshape(40, 100)

def read(job):
    from gpuload import config
    kind, backend, row = job
    with config.set(backend=backend, poison=True):
        array = t.Stored(Path({str(tmp_path)!r}) / kind, data, (7, 30), kind=kind, write=False)
        array.check(np.s_[row:])
        return int(array.read(np.s_[row]).sum())

if __name__ == "__main__":
    jobs = [(kind, backend, row) for kind in ("raw", "shard") for backend in ("io_uring", "posix") for row in (0, 17)]
    for kind in ("raw", "shard"):
        t.Stored(Path({str(tmp_path)!r}) / kind, data, (7, 30), kind=kind)
    expected = [read(job) for job in jobs]
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        assert pool.map(read, jobs) == expected
    print("equal")
"""
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(program)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "equal\n", "")


def test_a_device_read_in_a_forked_child_names_spawn(python: Any, tmp_path: Any) -> None:
    """Without a GPU: a stand-in for CuPy that says it has one, and would hang or crash if the child used it."""
    script = """
import types
cupy = types.ModuleType("cupy")
class ndarray: ...
class Runtime:
    used = 0
    CUDARuntimeError = RuntimeError
    def getDeviceCount(self):
        Runtime.used += 1
        return 1
    getDevice = lambda self: 0
cupy.ndarray = ndarray
cupy.cuda = types.SimpleNamespace(runtime=Runtime(), Device=lambda index: types.SimpleNamespace(id=index))
sys.modules["cupy"] = cupy
from gpuload.errors import AfterForkError
from gpuload.memory import device
array = t.Stored(Path(sys.argv[1]), np.arange(1000), (100,))
array.check()
assert device.resolve("auto").name == "cuda:0"
held = device.resolve("cuda:0")
out = ndarray()
out.device = types.SimpleNamespace(id=0)
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    Runtime.used = 0
    code = 1
    try:
        array.check()
        messages = []
        request, _ = array.request()
        tries = [
            lambda: device.resolve("auto"),
            lambda: device.resolve("cuda"),
            lambda: device.resolve("cuda:0"),
            lambda: held.empty((3,), "u1"),
            lambda: reader.read(t.replace_out(request, out)),
            lambda: reader.fetch(array.root, array.keys, device=held),
        ]
        for attempt in tries:
            try:
                attempt()
            except AfterForkError as error:
                messages.append(str(error))
        assert len(messages) == len(tries), len(messages)
        assert all("spawn" in message for message in messages)
        assert device.gpu_count() == 0 and Runtime.used == 0
        array.check()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert device.resolve("auto").name == "cuda:0"  # the parent's still works
array.check()
print("refused")
"""
    assert python(script, tmp_path) == "refused"


def test_a_child_of_a_process_without_gpu_reads_with_auto(python: Any) -> None:
    script = """
from gpuload.memory import device
if device.gpu_count():
    print("cpu")
    sys.exit()
assert device.resolve("auto") is device.HOST
pid = os.fork()
if pid == 0:
    os._exit(0 if device.resolve("auto") is device.HOST else 1)
assert os.waitpid(pid, 0)[1] == 0
print("cpu")
"""
    assert python(script) == "cpu"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["raw", "zlib"])
@pytest.mark.parametrize("daemon", [True, False], ids=["daemon", "thread"])
def test_the_interpreter_ends_with_reads_under_way(
    daemon: bool, kind: str, backend: str, python: Any, tmp_path: Any
) -> None:
    """A thread that reads for ever ends with the process, one that is to finish its reads does."""
    script = """
kind, backend, daemon = sys.argv[2], sys.argv[3], sys.argv[4] == "True"
from gpuload.errors import TransportError
config.set({"backend": backend, "poison": True, "batch_bytes": 64 << 10})
array = t.Stored(Path(sys.argv[1]) / kind, np.arange(1 << 16, dtype="<i8"), (4096,), kind=kind)
array.check()
under_way = threading.Event()
def read():
    try:
        for turn in range(1 << 30 if daemon else 10):
            array.check()
            if turn == 1:
                under_way.set()
        os.write(1, b"finished;")
    except TransportError:
        pass  # the process ends
threads = [threading.Thread(target=read, daemon=daemon) for _ in range(3)]
for thread in threads:
    thread.start()
under_way.wait()
"""
    assert python(script, tmp_path, kind, backend, daemon) == ("" if daemon else "finished;" * 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_interpreter_ends_with_handles_in_the_cache(backend: str, python: Any, tmp_path: Any) -> None:
    script = """
config.set({"backend": sys.argv[2]})
array = t.Stored(Path(sys.argv[1]), np.arange(1000), (10,), kind="shard")
array.check()
assert len(reader.handle_cache()) > 5
from gpuload.engine.plain import RegisteredFile
f = RegisteredFile(array.folder / "shard.0")
f.read_into(bytearray(10))
f.unbuffered_fd
print("read")
"""
    assert python(script, tmp_path, backend) == "read"


def test_a_read_at_exit(python: Any, tmp_path: Any) -> None:
    """Whoever reads while the process ends gets the right values or an error, and the process ends."""
    script = """
import atexit
array = t.Stored(Path(sys.argv[1]), np.arange(1000), (10,))
zlib = t.Stored(Path(sys.argv[1]) / "z", np.arange(1 << 17), (1 << 14,), kind="zlib")
@atexit.register
def late():
    for backend in ("io_uring", "posix"):
        with config.set(backend=backend):
            array.check()
            zlib.check()
    print("right", flush=True)
array.check()
"""
    assert python(script, tmp_path) == "right"


def test_importing_the_engine_starts_nothing(python: Any) -> None:
    script = """
assert threading.active_count() == 1
assert "cupy" not in sys.modules and "zarr" not in sys.modules
print(transfer._current)
"""
    assert python(script) == "None"
