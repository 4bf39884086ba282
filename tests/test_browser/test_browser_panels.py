"""The panels that stay as they are, in a real JupyterLab: their buttons copy, their names are text, nothing is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Open = Callable[..., Any]
EVIL = "<img src=x onerror=alert(1)>"
VIEW = ".gpuload-stillness"

DOCTOR = f"""\
import gpuload
from gpuload.checks.report import BackendState, MountRow, Report, Section, failed, passed, unknown
from gpuload.request import Reason

checks = (
    passed("gpu", "AMD Instinct"),
    failed("p2pdma", "CONFIG_PCI_P2PDMA is not set", "boot a kernel with CONFIG_PCI_P2PDMA=y", root=True),
    unknown("cupy", {EVIL!r}, "pip install 'gpuload[rocm]'"),
)
rows = (MountRow("/data/{EVIL}", "xfs", "259:1", ("dm-0 (LVM)", "nvme0n1 (NVMe)"), True, None, True),)
backends = {{"hipfile": BackendState(False, Reason.NO_LIBRARY, {EVIL!r}), "posix": BackendState(True, None)}}
gpuload.widgets.Doctor(Report((Section({EVIL!r}, checks),), backends, rows))
"""

# What is cut, or lies beyond the view's right edge without a way to scroll there.
CUT = """selector => {
    const view = document.querySelector(selector);
    const edge = view.getBoundingClientRect().right + 1;
    return [...view.querySelectorAll("th, td, p, summary, button, code, li")]
        .filter(part => part.offsetParent)
        .filter(part => part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).display !== "inline"
            || (!part.closest(".scroll") && part.getBoundingClientRect().right > edge))
        .map(part => part.textContent);
}"""


def clipboard(page: Any) -> str:
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def look(book: Any, screenshots: Path, name: str, selector: str = VIEW) -> None:
    """Nothing is cut, wide or narrow, in light and dark; pictures of all four."""
    book.command("application:toggle-left-area")
    for width in (1280, 800):
        book.page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            book.theme(f"JupyterLab {theme}")
            book.wait(lambda: book.page.evaluate(CUT, selector) == [], "a picture of which nothing is cut")
            book.page.locator(selector).screenshot(path=screenshots / f"{name}-{theme.lower()}-{width}.png")


def test_the_doctors_commands_can_be_copied(notebook: Open, screenshots: Path) -> None:
    book = notebook(DOCTOR)
    page = book.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    book.run_all()
    page.wait_for_selector(f"{VIEW} .gpuload-doctor")
    buttons = page.locator(f"{VIEW} button")
    assert buttons.all_inner_texts() == ["Copy", "Copy"]
    buttons.nth(1).click()
    book.wait(lambda: buttons.all_inner_texts() == ["Copy", "Copied"], "the second command")
    assert clipboard(page) == "pip install 'gpuload[rocm]'"
    buttons.nth(0).focus()
    page.keyboard.press("Enter")
    book.wait(lambda: buttons.all_inner_texts() == ["Copied", "Copy"], "the first command")
    assert clipboard(page) == "boot a kernel with CONFIG_PCI_P2PDMA=y"
    # Where a page may not use the clipboard as browsers want it today.
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    buttons.nth(1).click()
    book.wait(lambda: buttons.all_inner_texts() == ["Copy", "Copied"], "the second command, the old way")
    assert EVIL in page.locator(f"{VIEW} caption").first.inner_text()
    assert page.locator("img[src=x]").count() == 0
    look(book, screenshots, "doctor")
    assert book.errors == []
    assert book.foreign == []


STORE = f"""\
import gpuload, numpy, zarr

root = zarr.create_group("tree.zarr", overwrite=True)
value = numpy.ones((10, 37, 49), "f4")
root.create_array("uncompressed", data=value, chunks=(1, 37, 49), compressors=None, dimension_names=["time", "y", "x"])
inner = root.create_group({EVIL!r})
inner.create_array({EVIL!r}, data=value, chunks=(5, 37, 49), attributes={{{EVIL!r}: {EVIL!r}}})
store = gpuload.open("tree.zarr", device="cpu")
"""


def test_a_store_shows_its_tree(notebook: Open, screenshots: Path) -> None:
    own = f"store[{EVIL!r}][{EVIL!r}]"
    book = notebook(STORE, "store", own, "gpuload.widgets.StoreView(store)")
    page = book.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    book.run_all()
    page.wait_for_selector(f"{VIEW} button")
    book.wait_idle()
    # The nodes by themselves are plain HTML; the StoreView is the same, with its button.
    assert page.locator(".gpuload-node").count() == 3
    rows = page.locator(f"{VIEW} tbody tr")
    assert [row.split("\t")[0].strip() for row in rows.all_inner_texts()] == [EVIL, EVIL, "uncompressed"]
    assert "host-codec 100" in rows.nth(1).inner_text()
    page.locator("summary", has_text="1 attributes").click()
    assert page.get_by_role("rowheader", name=EVIL).count() >= 3
    assert page.locator("img[src=x]").count() == 0
    page.locator(f"{VIEW} button").click()
    book.wait(lambda: page.locator(f"{VIEW} button").inner_text() == "Copied", "the command")
    assert clipboard(page).startswith("gpuload pack ")
    look(book, screenshots, "storeview")
    assert book.errors == []
    assert book.foreign == []


# A task without an end, so that nothing hangs on how fast it is: it is stopped by the kernel's interrupt.
PROGRESS = f"""\
import gpuload, numpy, zarr
from pathlib import Path
from gpuload import tasks

name = {EVIL!r}
zarr.create_array(name + ".zarr", data=numpy.ones((64, 64), "f4"), chunks=(8, 8), compressors=None, overwrite=True)
array = gpuload.open(name + ".zarr", device="cpu")
with gpuload.progress(after=0), tasks.work(f"reading {{name}}", 400 * array.nbytes) as task:
    while True:
        with tasks.part_of(task if task.done < 300 * array.nbytes else tasks.Task("", 0)):
            array[...]
"""


def test_progress_moves_while_the_cell_runs_and_the_interrupt_stops_it(notebook: Open, screenshots: Path) -> None:
    book = notebook(PROGRESS)
    page = book.page
    book.run_all()
    own = page.locator(f"{VIEW} .gpuload-progress[data-state=running]")
    own.wait_for()
    book.wait(lambda: "75 % of 6.55 MB" in own.inner_text(), "three quarters")
    assert page.locator(".jp-InputPrompt", has_text="[*]").count() > 0
    book.lab.post(f"api/kernels/{book.kernel()}/interrupt")
    book.wait_idle()
    ended = page.locator(".gpuload-progress[data-state=interrupted]")
    ended.wait_for()
    assert page.locator(".gpuload-progress").count() == 1
    assert "interrupted after" in ended.inner_text()
    assert EVIL in ended.inner_text()
    assert page.locator("img[src=x]").count() == 0
    assert "KeyboardInterrupt" in page.locator(".jp-OutputArea").first.inner_text()
    look(book, screenshots, "progress", ".gpuload-place")
    assert book.errors == []
    assert book.foreign == []
