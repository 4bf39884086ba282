"""The Monitor in a real JupyterLab: its numbers are the trace's, and it can be used while a cell runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]

STORE = """\
import json
from pathlib import Path

import gpuload
import zarr

n = {edge}
zarr.create_array({name!r}, shape=(8 * n, 8 * n), chunks=(n, n), dtype="f4", compressors=None)[:] = 1.0
array = gpuload.open({name!r}, device="cpu")
"""
# Reads until the test says stop, and says how often it has read.
READ = """\
with gpuload.trace() as trace:
    display(trace.widget())
    rounds = 0
    while not Path({stop!r}).exists():
        array[...]
        rounds += 1
        Path({rounds!r}).write_text(str(rounds))
"""
TELL = "_ = Path({file!r}).write_text(trace.to_json())"
VIEW = ".gpuload-monitor"
ROWS = f"{VIEW} .gpuload-requests tbody tr"


def cells(name: str, edge: int = 8) -> list[str]:
    """A notebook's; the store has 8 × 8 chunks of `edge` × `edge` elements."""
    words: dict[str, Any] = {
        "edge": edge,
        "name": f"{name}.zarr",
        "stop": f"{name}.stop",
        "rounds": f"{name}.rounds",
        "file": f"{name}.json",
    }
    return [cell.format(**words) for cell in (STORE, READ, TELL)]


def numbers(page: Any) -> tuple[int, int]:
    data = page.locator(VIEW).first.evaluate("view => [view.dataset.requests, view.dataset.bytes]")
    return int(data[0]), int(data[1])


def wait_beyond(page: Any, requests: int) -> None:
    """Until the Monitor shows more than so many requests."""
    page.wait_for_function(f"n => Number(document.querySelector('{VIEW}')?.dataset.requests ?? 0) > n", arg=requests)


def running(page: Any) -> bool:
    return page.locator(".jp-InputPrompt", has_text="[*]").count() > 0


def rounds_of(book: Any, name: str) -> int:
    file = book.lab.folder / f"{name}.rounds"
    return int(file.read_text() or 0) if file.exists() else 0


def overlaps(page: Any) -> list[str]:
    """Pairs of words or buttons of the view that lie over each other, and those that are cut."""
    return page.evaluate(
        """selector => {
            const view = document.querySelector(selector);
            const words = "button, input, th, td, .gpuload-headline, .gpuload-status, summary";
            const parts = [...view.querySelectorAll(words)]
                .filter(part => part.offsetParent && part.textContent + (part.placeholder ?? ""));
            const scrolled = part => part.closest(".gpuload-scroll") ?? view;
            const bad = [];
            const cut = part => part.scrollWidth > part.clientWidth + 1 && !part.classList.contains("gpuload-key");
            for (const part of parts.filter(cut)) bad.push(`cut: ${part.textContent}`);
            const boxes = parts.map(part => [part, part.getBoundingClientRect()]);
            const header = part => part.tagName === "TH";
            for (const [i, [a, p]] of boxes.entries()) for (const [b, q] of boxes.slice(i + 1)) {
                if (header(a) !== header(b) && scrolled(a) === scrolled(b)) continue; // a head stays over its rows
                const clip = scrolled(b).getBoundingClientRect();
                const right = Math.min(q.right, clip.right), bottom = Math.min(q.bottom, clip.bottom);
                if (p.left + 1 < right && q.left + 1 < p.right && p.top + 1 < bottom && q.top + 1 < p.bottom)
                    bad.push(`over each other: ${a.textContent} / ${b.textContent}`);
            }
            const room = view.getBoundingClientRect();
            for (const [part, box] of boxes)
                if (scrolled(part) === view && box.right > room.right + 1) bad.push(`beyond: ${part.textContent}`);
            return bad;
        }""",
        VIEW,
    )


def test_its_numbers_change_while_reading_and_end_as_the_traces(notebook: Open) -> None:
    book = notebook(*cells("numbers"))
    page = book.page
    book.run_all()
    wait_beyond(page, 0)
    first, _ = numbers(page)
    wait_beyond(page, first)
    assert running(page)
    book.touch("numbers.stop")
    book.wait_idle()
    page.wait_for_selector(f"{VIEW}[data-state=ended]")
    summary = json.loads((book.lab.folder / "numbers.json").read_text())
    assert numbers(page) == (summary["requests"], summary["bytes"])
    (row,) = summary["rows"]
    shown = page.locator(f"{VIEW} .gpuload-ways tbody tr")
    assert shown.count() == 1
    assert shown.get_attribute("data-path") == row["path"]
    assert shown.get_attribute("data-bytes") == str(row["bytes"])
    words = [page.locator(f"{VIEW} .gpuload-ways tbody td").nth(i).inner_text() for i in range(4)]
    assert words == [row["path"], row["backend"], row["reason"], f"{row['requests']:,}"]
    assert page.locator(f"{VIEW} .gpuload-area-fallback").get_attribute("d").startswith("M")
    assert book.errors == []
    assert book.foreign == []


def test_pause_filter_and_save_work_while_the_cell_runs(notebook: Open) -> None:
    book = notebook(*cells("paused"))
    page = book.page
    book.run_all()
    wait_beyond(page, 1000)
    view = page.locator(VIEW)
    view.get_by_role("button", name="Pause").click()
    page.wait_for_selector(f"{VIEW}[data-state=paused]")
    still = numbers(page)
    before = rounds_of(book, "paused")
    book.wait(lambda: rounds_of(book, "paused") > before + 100, "more reads")
    assert numbers(page) == still
    view.get_by_role("button", name="Resume").click()
    wait_beyond(page, still[0])

    view.locator("summary").click()
    page.wait_for_selector(ROWS)
    view.locator(".gpuload-filter").fill("C/7/7 fallback")
    page.wait_for_function(
        "selector => { const rows = [...document.querySelectorAll(selector)];"
        " return rows.length > 1 && rows.every(row => row.lastChild.textContent === 'c/7/7') }",
        arg=ROWS,
    )
    with page.expect_download() as saved:
        view.get_by_role("button", name="Save CSV").click()
    lines = Path(saved.value.path()).read_text().splitlines()
    assert lines[0] == "number,path,backend,reason,decode,key,offset,bytes,latency"
    assert len(lines) > 1
    assert all(",c/7/7,0,256," in line for line in lines[1:])
    with page.expect_download() as saved:
        view.get_by_role("button", name="Save JSON").click()
    content = json.loads(Path(saved.value.path()).read_text())
    assert content["bytes"] == 256 * content["requests"]
    view.locator(".gpuload-filter").fill("no such key")
    page.wait_for_function("selector => !document.querySelector(selector)", arg=ROWS)
    view.locator(".gpuload-filter").fill("")
    view.get_by_role("button", name="Clear").click()
    wait_beyond(page, numbers(page)[0])
    assert running(page)
    book.touch("paused.stop")
    book.wait_idle()
    page.wait_for_selector(f"{VIEW}[data-state=ended]")
    assert book.errors == []


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_is_cut_or_covered_in_light_and_dark(notebook: Open, screenshots: Path, width: int) -> None:
    name = f"look{width}"
    book = notebook(*cells(name, edge=512), width=width, height=1150)
    page = book.page
    book.command("application:toggle-left-area")
    book.run_all()
    wait_beyond(page, 1000)
    book.touch(f"{name}.stop")
    book.wait_idle()
    page.wait_for_selector(f"{VIEW}[data-state=ended]")
    page.locator(f"{VIEW} summary").click()
    page.wait_for_selector(ROWS)
    grounds = []
    for theme in ("Light", "Dark"):
        book.theme(f"JupyterLab {theme}")
        assert overlaps(page) == []
        page.locator(VIEW).screenshot(path=screenshots / f"monitor-{theme.lower()}-{width}.png")
        grounds.append(page.evaluate("s => getComputedStyle(document.querySelector(s)).color", VIEW))
    assert grounds[0] != grounds[1]
    assert book.errors == []


def test_names_are_text_and_many_views_live_side_by_side(notebook: Open) -> None:
    evil = "<img src=x onerror=alert(1)>"
    write = f"""\
import gpuload, zarr
from pathlib import Path
group = zarr.create_group("evil.zarr", overwrite=True)
group.create_array({evil!r}, shape=(8, 8), chunks=(4, 4), dtype="f4", compressors=None)[:] = 1.0
array = gpuload.open("evil.zarr", device="cpu")[{evil!r}]
"""
    read = """\
with gpuload.trace() as trace:
    first, second = trace.widget(), gpuload.widgets.Monitor(trace)
    display(first, second, first)
    array[...]
    closed = gpuload.widgets.Monitor(trace)
    display(closed)
    closed.close()
    array[...]
"""
    book = notebook(write, read, "array")
    page = book.page
    for _ in range(2):
        book.run_all()
        page.wait_for_function(f"document.querySelectorAll('{VIEW}[data-state=ended][data-bytes=\"512\"]').length == 3")
        book.wait_idle()
        page.locator(f"{VIEW} summary").first.click()
        page.wait_for_selector(ROWS)
        assert evil in page.locator(f"{ROWS} td:last-child").first.inner_text()
        assert page.locator(".gpuload-place:has(> .gpuload-report)").count() == 1  # the one that was closed
        assert page.locator("img[src=x]").count() == 0
        book.lab.post(f"api/kernels/{book.kernel()}/restart")
        book.wait(lambda: book.lab.kernel_ready(book.name), "the kernel, started anew")
        # The views of the kernel that is gone stay as they are.
        assert page.locator(f"{VIEW}[data-state=ended]").count() == 3
    assert book.errors == []


def test_a_saved_notebook_shows_its_last_state_without_a_kernel(notebook: Open, browser: Any) -> None:
    book = notebook(*cells("saved"))
    page = book.page
    book.run_all()
    wait_beyond(page, 0)
    book.touch("saved.stop")
    book.wait_idle()
    page.wait_for_selector(f"{VIEW}[data-state=ended]")
    summary = json.loads((book.lab.folder / "saved.json").read_text())
    file = book.lab.folder / book.name
    book.command("docmanager:save")
    requests = f"{summary['requests']:,}"
    book.wait(lambda: requests in file.read_text(), "the saved notebook")
    book.lab.delete(f"api/sessions/{book.session()['id']}")
    book.open()  # with a kernel that knows nothing of it
    page.wait_for_selector(".gpuload-report table")
    assert requests in page.locator(".gpuload-report").first.inner_text()
    assert page.locator(VIEW).count() == 0
    assert page.get_by_text("Error displaying widget").count() == 0

    # And as a page on disk, without a network.
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output", "saved.html", book.name]
    done = subprocess.run(command, cwd=book.lab.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((book.lab.folder / "saved.html").as_uri(), wait_until="domcontentloaded")
    assert requests in page.locator(".gpuload-report").first.inner_text()
    assert page.locator(".gpuload-picture svg path").count() >= 2
    context.close()
