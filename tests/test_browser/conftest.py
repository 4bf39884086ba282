"""A JupyterLab of the test's own, a Chromium of the system's, and notebooks made to order.

`make test-browser` runs these; elsewhere they are skipped. Nothing waits for a time: cells run until a test says stop.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 90.0  # seconds: a loaded machine may take its time, a wait ends when its condition holds


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    reason = None
    if os.environ.get("GPULOAD_TEST_BROWSER") != "1":
        reason = "drives a browser: make test-browser"
    elif CHROMIUM is None:
        reason = "no Chromium is installed"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(900))
            # Playwright and Jupyter open sockets that they close when the garbage is collected.
            item.add_marker(pytest.mark.filterwarnings("default"))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def wait_for(condition: Callable[[], Any], what: str, between: Callable[[], None] = lambda: time.sleep(0.05)) -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"waited in vain for {what}")
        between()
    return value


class Lab:
    """A running JupyterLab: `url`, its `folder`, and what its REST interface says."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self.url, self.token, self.folder = url, token, folder

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def delete(self, path: str) -> None:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method="DELETE")
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    def post(self, path: str) -> None:
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(f"{self.url}{path}", headers=headers, method="POST")
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    def kernel_ready(self, name: str) -> bool:
        """Whether the notebook's kernel is idle and a page is connected to it."""
        for session in self.get("api/sessions"):
            kernel = session["kernel"]
            if session["path"] == name and kernel["execution_state"] == "idle" and kernel["connections"] > 0:
                return True
        return False


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("notebooks")
    settings = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    token = "only-for-this-test"
    environment = os.environ | {
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "PYTHONWARNINGS": "default",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += [f"--IdentityProvider.token={token}", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    command += [f"--ServerApp.root_dir={folder}", "--ServerApp.iopub_data_rate_limit=0", "--ServerApp.answer_yes=True"]
    log = home / "lab.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=output)
    try:

        def running() -> dict[str, Any] | None:
            assert server.poll() is None, log.read_text()
            files = list((home / "runtime").glob("jpserver-*.json"))
            return json.loads(files[0].read_text() or "null") if files else None

        info = wait_for(running, "JupyterLab")
        yield Lab(f"http://127.0.0.1:{info['port']}/", token, folder)
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """Where pictures go: GPULOAD_SCREENSHOTS, as for the documents' own, or nowhere that lasts."""
    folder = os.environ.get("GPULOAD_SCREENSHOTS")
    return Path(folder).resolve() if folder else tmp_path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


class Notebook:
    """A notebook that is open in a page."""

    def __init__(self, lab: Lab, page: Any, name: str) -> None:
        self.lab, self.page, self.name = lab, page, name
        self.errors: list[str] = []
        self.foreign: list[str] = []
        page.on("console", lambda message: self._complain(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("request", lambda request: self._outside(request.url))
        page.set_default_timeout(PATIENCE * 1000)

    def _complain(self, words: str) -> None:
        # anywidget says this of any model that is not ready within two seconds, which is a slow machine and no error.
        if "[anywidget] Failed to initialize model." not in words:
            self.errors.append(words)

    def _outside(self, url: str) -> None:
        if not url.startswith((self.lab.url, "data:", "blob:", self.lab.url.replace("http", "ws"))):
            self.foreign.append(url)

    def open(self) -> None:
        self.page.goto(f"{self.lab.url}lab/tree/{self.name}?token={self.lab.token}&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        wait_for(lambda: self.lab.kernel_ready(self.name), "the kernel")

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of `condition`, with the page alive meanwhile."""
        return wait_for(condition, what, lambda: self.page.wait_for_timeout(50))

    def session(self) -> dict[str, Any]:
        """What the server says of this notebook's session."""
        (own,) = [session for session in self.lab.get("api/sessions") if session["path"] == self.name]
        found: dict[str, Any] = own
        return found

    def kernel(self) -> str:
        return str(self.session()["kernel"]["id"])

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Begin a command of JupyterLab; what it takes until its end may be long."""
        self.page.evaluate("([name, args]) => { jupyterapp.commands.execute(name, args) }", [name, arguments or {}])

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def wait_idle(self) -> None:
        """Until the kernel has done all that it was asked to do."""
        prompts = ".jp-Notebook .jp-CodeCell .jp-InputPrompt"
        self.page.wait_for_function(
            "selector => [...document.querySelectorAll(selector)].every(p => /\\[\\d+\\]/.test(p.textContent))",
            arg=prompts,
        )

    def theme(self, name: str) -> None:
        self.command("apputils:change-theme", {"theme": name})
        dark = str("Dark" not in name).lower()
        self.page.wait_for_selector(f'body[data-jp-theme-light="{dark}"]', state="attached")

    def touch(self, name: str) -> None:
        """Make a file beside the notebook: what its cells wait for."""
        (self.lab.folder / name).touch()


@pytest.fixture
def notebook(lab: Lab, browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Notebook]]:
    """Open a notebook of the given cells."""
    opened: list[Any] = []

    def make(*cells: str, width: int = 1280, height: int = 1000) -> Notebook:
        import nbformat

        name = f"{request.node.name}-{len(opened)}.ipynb"
        content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        content.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(content, lab.folder / name)
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        opened.append(context)
        made = Notebook(lab, context.new_page(), name)
        made.open()
        return made

    yield make
    for context in opened:
        context.close()
    for session in lab.get("api/sessions"):
        lab.delete(f"api/sessions/{session['id']}")
