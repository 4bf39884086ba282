"""The ChunkMap in a real JupyterLab: as many cells of each colour as chunks were served that way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Open = Callable[..., Any]
VIEW = ".gpuload-chunkmap"

# A grid of 3 × 4 × 6 chunks; one has no file. hipfile's are made up, for a machine without it: what matters is who
# the record says it was.
WRITE = """\
import gpuload, numpy, zarr
from pathlib import Path
from gpuload import events
from gpuload.request import Decode, ReadPath, Served

zarr.create_array("map.zarr", shape=(6, 8, 12), chunks=(2, 2, 2), dtype="f4", compressors=None,
                  dimension_names=["time", "<b>y</b>", "x"])[:] = 1.0
Path("map.zarr/c/0/3/5").unlink()
array = gpuload.open("map.zarr", device="cpu")

def fastpath(*keys):
    n = numpy.arange(len(keys))
    size = numpy.full(len(keys), 32)
    way = ("hipfile", ReadPath.FASTPATH, None, Decode.NONE)
    events.publish(Served(*way, keys, n, n * 0, size, size, n * 1e-4, 0.0, 1.0))
"""
READ = """\
with gpuload.trace() as trace:
    display(gpuload.widgets.ChunkMap(array, trace))
    array[0:2, 0:4]
    fastpath("c/0/0/0", "c/0/3/0", "c/0/3/1", "c/1/1/1")
    while not Path("map.stop").exists():
        pass
    array[2:4, 6:8]
"""

# The colours of a cell: of the pixels along its diagonal from the top left, which crosses the stripes.
COLOURS = """selector => {
    const canvas = document.querySelector(selector + " .gpuload-canvas canvas");
    const { side, rows, columns, step } = canvas.dataset;
    const ratio = canvas.width / (side * columns);
    const pen = canvas.getContext("2d");
    const cells = [];
    for (let row = 0; row < rows; row += 1) for (let column = 0; column < columns; column += 1) {
        const found = new Set();
        for (let i = 3; i < side - 3; i += 1) {
            const [r, g, b, a] = pen.getImageData((column * side + i) * ratio, (row * side + i) * ratio, 1, 1).data;
            if (a < 200) continue;
            if (b > r + 60) found.add("blue");
            else if (r > b + 60) found.add("orange");
        }
        cells.push([...found].sort().join("+"));
    }
    return { cells, step, rows, columns };
}"""


def cells(page: Any) -> list[str]:
    drawn = page.evaluate(COLOURS, VIEW)
    assert (drawn["rows"], drawn["columns"], drawn["step"]) == ("4", "6", "1")
    found: list[str] = drawn["cells"]
    return found


def point(page: Any, row: int, column: int) -> dict[str, float]:
    side = int(page.locator(f"{VIEW} .gpuload-canvas canvas").get_attribute("data-side"))
    return {"x": (column + 0.5) * side, "y": (row + 0.5) * side}


def test_as_many_cells_are_coloured_as_chunks_were_read(notebook: Open, screenshots: Path) -> None:
    book = notebook(WRITE, READ)
    page = book.page
    book.run_all()
    page.wait_for_function(f"document.querySelector('{VIEW}')?.dataset.fastpath == 3")
    assert page.locator(".jp-InputPrompt", has_text="[*]").count() > 0  # all of this while the cell runs
    expected = ["blue+orange", *["orange"] * 11, *[""] * 6, "blue", "blue", *[""] * 4]
    book.wait(lambda: cells(page) == expected, "the colours of the first slice")

    canvas = page.locator(f"{VIEW} .gpuload-canvas canvas")
    words = page.locator(f"{VIEW} .gpuload-words")
    canvas.hover(position=point(page, 0, 0))
    text = words.inner_text()
    assert text.startswith("chunk (0, 0, 0): ")
    assert "1 × fastpath by hipfile, 32 B" in text
    assert "1 × fallback by " in text
    canvas.hover(position=point(page, 3, 5))
    assert words.inner_text() == "chunk (0, 3, 5): no file: its fill value"
    canvas.hover(position=point(page, 2, 2))
    assert words.inner_text() == "chunk (0, 2, 2): never read"
    canvas.click(position=point(page, 1, 2))
    assert page.locator(f"{VIEW} .gpuload-code").inner_text() == "array[0:2, 2:4, 4:6]"

    slider = page.locator(f"{VIEW} input[type=range]")
    slider.fill("1")
    slice_1 = [""] * 7 + ["blue"] + [""] * 16
    book.wait(lambda: cells(page) == slice_1, "the colours of the second slice")
    book.touch("map.stop")
    book.wait_idle()
    book.wait(lambda: cells(page)[18:] == ["orange"] * 6, "the colours of what was read last")
    data = page.locator(VIEW).evaluate("view => ({...view.dataset})")
    assert data == {"state": "ended", "fastpath": "3", "fallback": "17", "both": "1", "missing": "1", "neverread": "50"}
    assert page.locator(f"{VIEW} b").count() == 0
    slider.fill("0")
    for theme in ("Light", "Dark"):
        book.theme(f"JupyterLab {theme}")
        book.wait(lambda: cells(page) == expected, "the colours of the theme")
        page.locator(VIEW).screenshot(path=screenshots / f"chunkmap-{theme.lower()}.png")
    assert book.errors == []
    assert book.foreign == []
