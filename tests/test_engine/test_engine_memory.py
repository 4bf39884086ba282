"""A large read takes no more host memory than its result, the pool of slabs and a little."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

MIB = 1 << 20

SCRIPT = """
import zarr, gpuload
path, gib, way = Path(sys.argv[1]) / "a", int(sys.argv[2]), sys.argv[3]

def status(name):
    line = next(line for line in open("/proc/self/status") if line.startswith(name))
    return int(line.split()[1]) << 10

# Chunks of 16 MiB that are one file under many names.
side = 4 << 20
zarr.create_array(path, shape=(gib * 64, side), chunks=(1, side), dtype="<i4", compressors=None)
(path / "c" / "0").mkdir(parents=True)
np.arange(side, dtype="<i4").tofile(path / "c" / "0" / "0")
for i in range(1, gib * 64):
    (path / "c" / str(i)).mkdir()
    os.link(path / "c" / "0" / "0", path / "c" / str(i) / "0")
array = gpuload.open(path, device="cpu")
with config.set({"direct.host": way}):
    array[:1]
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # forget the peak so far
    result = array[...]
assert (result[-1] == np.arange(side)).all() and (result[::9, 77] == 77).all()
print(status("VmHWM") - before, result.nbytes, transfer.io_thread().pool.nbytes)
"""


@pytest.mark.parametrize("way", ["auto", "never"])
def test_host_growth_of_a_large_read(way: str, tmp_path: Any, python: Any) -> None:
    gib = 4 if settings().max_examples > 1000 else 1
    growth, result, pool = map(int, python(SCRIPT, tmp_path, gib, way).split())
    assert result == gib << 30
    assert result - 16 * MIB < growth <= result + pool + 64 * MIB
