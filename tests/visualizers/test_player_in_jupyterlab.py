"""The widget in a real JupyterLab: a cell is run, play is pressed, and the picture moves."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from visualizers.frames import PALETTE
from visualizers.twins.common import pale as mixed

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
CELL = """
import sys
sys.path[:0] = {paths!r}
from helpers.traces import requests, run
from tinyengine.scheduler import Orca, Static
from visualizers import compare, show

compare(static=run(Static, requests()), orca=run(Orca, requests()))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab that shares nothing with the user's, and the folder that it serves."""
    home = tmp_path_factory.mktemp("lab")
    folders = {
        name: home / name for name in ("config", "data", "runtime", "ipython", "path", "settings", "spaces", "work")
    }
    for folder in folders.values():
        folder.mkdir()
    write_json(
        folders["path"] / "kernels/python3/kernel.json",
        {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "Python 3",
            "language": "python",
        },
    )
    extension = folders["settings"] / "@jupyterlab/apputils-extension"
    write_json(extension / "notification.jupyterlab-settings", {"fetchNews": "false", "checkForUpdates": False})
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(folders["config"]),
        "JUPYTER_DATA_DIR": str(folders["data"]),
        "JUPYTER_RUNTIME_DIR": str(folders["runtime"]),
        "JUPYTER_PATH": str(folders["path"]),
        "JUPYTERLAB_SETTINGS_DIR": str(folders["settings"]),
        "JUPYTERLAB_WORKSPACES_DIR": str(folders["spaces"]),
        "IPYTHONDIR": str(folders["ipython"]),
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"),
        *("--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={folders['work']}"),
        "--LabApp.expose_app_in_browser=True",
    ]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_for(f"http://127.0.0.1:{port}/api", server, home / "log")
            yield f"http://127.0.0.1:{port}/lab", folders["work"]
        finally:
            server.terminate()
            server.wait(20)


def write_json(path: Path, content: dict):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_notebook(path: Path, source: str):
    """One cell, not yet run."""
    cell = {
        "cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [],
        "source": source.format(paths=[str(ROOT), str(ROOT / "tests")]),
    }  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    write_json(path, {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


def wait_for(address: str, server: subprocess.Popen, log: Path):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            return urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")


@pytest.fixture
def notebook(lab, browser):
    """A page with a notebook of one cell, run: its output is the widget."""
    address, folder = lab
    write_notebook(folder / "look.ipynb", CELL)
    page = run_all(browser, f"{address}/tree/look.ipynb?reset")
    page.locator(".te-player canvas").first.wait_for()
    page.get_by_text("iteration 1:").first.wait_for()
    yield page
    page.close()


def run_all(browser, address: str):
    """A page with the notebook at this address, its cells on their way."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_function(
        "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus === 'connected'"
    )
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    return page


def picture(page):
    return page.locator(".te-engine canvas").first.evaluate("canvas => canvas.toDataURL()")


def test_the_first_picture_has_the_colours_of_the_page(notebook):
    """render() runs before the element stands in the page, where it has no colours yet."""
    colour = """root => { const {strips} = root.player, canvas = strips[0].canvas, dpr = devicePixelRatio;
        for (let x = 0; ; x++) if (strips[0].hit(x, 31)?.i === 1)
            return [...canvas.getContext("2d").getImageData((x + 3) * dpr, 31 * dpr, 1, 1).data]; }"""
    notebook.get_by_test_id("scrub").press("End")
    notebook.wait_for_timeout(100)
    pale = [int(mixed(PALETTE[0])[n : n + 2], 16) for n in (1, 3, 5)]
    assert notebook.locator(".te-player").evaluate(colour) == [*pale, 255]


def test_play_moves_the_picture_and_keys_stay_in_the_widget(notebook):
    before = picture(notebook)
    notebook.locator('[data-act="play"]').click()
    notebook.get_by_test_id("position").get_by_text("iteration 4").wait_for()
    notebook.locator('[data-act="play"]').click()
    assert picture(notebook) != before

    cells = notebook.locator(".jp-Notebook .jp-Cell").count()
    notebook.get_by_test_id("scrub").focus()
    for key in ("b", "a", "d", "d", "Home", "ArrowRight"):
        notebook.keyboard.press(key)
    assert notebook.locator(".jp-Notebook .jp-Cell").count() == cells
    notebook.get_by_test_id("position").get_by_text("iteration 2", exact=True).wait_for()


def test_it_follows_the_theme_of_jupyterlab(notebook):
    player = notebook.locator(".te-player")
    assert player.get_attribute("data-theme") == "light"
    notebook.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    notebook.locator('.te-player[data-theme="dark"]').wait_for()
    notebook.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})")
    notebook.locator('.te-player[data-theme="light"]').wait_for()


def test_the_stored_output_carries_the_png_beside_the_widget(notebook, lab):
    notebook.evaluate("jupyterapp.commands.execute('docmanager:save')")
    path, deadline = lab[1] / "look.ipynb", time.monotonic() + 30
    while not (outputs := json.loads(path.read_text())["cells"][0]["outputs"]) and time.monotonic() < deadline:
        time.sleep(0.2)
    (output,) = outputs
    assert set(output["data"]) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert "".join(output["data"]["text/plain"]) == "Player(static: 56 iterations, orca: 51 iterations)"


def test_a_reopened_notebook_shows_its_widget_again(notebook):
    """The page is closed and opened while the kernel lives on."""
    notebook.evaluate("jupyterapp.commands.execute('docmanager:save')")
    notebook.get_by_test_id("position").get_by_text("iteration 1").wait_for()
    notebook.goto(notebook.url.replace("?reset", ""))
    notebook.locator(".te-player canvas").first.wait_for()
    notebook.get_by_text("iteration 1:").first.wait_for()
    before = picture(notebook)
    notebook.locator('[data-act="more"]').click()
    notebook.locator('[data-act="forward"]').click()
    notebook.wait_for_timeout(100)
    assert picture(notebook) != before


def test_the_colours_are_right_after_a_change_out_of_sight(notebook):
    """JupyterLab takes cells far out of sight out of the page."""
    notebook.evaluate("""() => { const tall = document.createElement("div");
        tall.style.height = "6000px";
        document.querySelector(".jp-WindowedPanel-viewport, .jp-Notebook").append(tall); }""")
    scroll = "top => document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, top)"
    notebook.evaluate(scroll, 5000)
    notebook.wait_for_timeout(300)
    notebook.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    notebook.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    notebook.wait_for_timeout(500)
    notebook.evaluate(scroll, 0)
    notebook.locator('.te-player[data-theme="dark"]').wait_for()
    notebook.wait_for_timeout(300)
    shown = picture(notebook)
    notebook.locator(".te-player").evaluate("root => root.player.restyle()")
    notebook.wait_for_timeout(200)
    assert picture(notebook) == shown
    notebook.evaluate("jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})")


PLAY = """
import sys
sys.path[:0] = {paths!r}
from visualizers import playground

playground("02")
"""


@pytest.fixture
def played(lab, browser):
    address, folder = lab
    write_notebook(folder / "play.ipynb", PLAY)
    page = run_all(browser, f"{address}/tree/play.ipynb?reset")
    page.locator(".te-player canvas").first.wait_for()
    yield page
    page.close()


def slide(page, name, value):
    """Types a number beside a slider."""
    label = page.locator(f".widget-label:text-is('{name}')")
    box = page.locator(".widget-hslider", has=label).locator(".widget-readout")
    box.fill(str(value))
    box.press("Enter")


def test_a_slider_of_the_playground_changes_picture_and_scoreboard(played):
    scores = played.locator(".te-scores")
    before, told = picture(played), scores.inner_text()
    assert played.get_by_test_id("position").inner_text() != "iteration 1"  # the whole run is in sight
    slide(played, "batch slots", 5)
    played.wait_for_function("told => document.querySelector('.te-scores').innerText !== told", arg=told)
    played.locator('td[data-testid="running"]').first.get_by_text("of 5").wait_for()
    assert picture(played) != before


def test_what_can_never_fit_is_a_sentence_in_its_place_and_not_the_end(played):
    slide(played, "output tokens", 80)
    slide(played, "K/V slots", 16)
    error = played.locator(".te-error")
    error.get_by_text("K/V slots").wait_for()
    assert "can come to need" in error.inner_text() and "Traceback" not in played.locator("body").inner_text()
    assert played.locator(".te-stale").count() == 1
    slide(played, "K/V slots", 1000)
    error.wait_for(state="detached")
    assert played.locator(".te-stale").count() == 0


def test_the_playground_gives_its_code(played):
    slide(played, "requests", 3)
    played.wait_for_timeout(400)
    played.get_by_text("Copy as code").click()
    code = played.get_by_test_id("code").inner_text()
    assert code.startswith("from visualizers import compare, dry_run") and code.count("r3") == 0
    assert played.evaluate("getSelection().toString()").strip() == code.strip()


def test_controls_that_the_reader_does_not_know_stand_behind_more(played):
    label = played.locator(".widget-label:text-is('token budget')")
    assert label.is_hidden()
    played.locator("button.jupyter-widgets:text-is('more')").click()
    label.wait_for()


LIVE = """
import sys
sys.path[:0] = {paths!r}
from helpers.traces import Stepper, requests
from tinyengine.scheduler import Orca
from visualizers import live

player = live(Stepper(Orca, requests()), interval=0.05, pace=0.1)
player
"""


def test_an_engine_is_watched_while_it_runs_and_paused_by_the_button(lab, browser):
    address, folder = lab
    write_notebook(folder / "live.ipynb", LIVE)
    page = run_all(browser, f"{address}/tree/live.ipynb?reset")
    button, iteration = page.get_by_test_id("engine"), page.locator('td[data-testid="iteration"]')
    seen = lambda: int(iteration.inner_text().split(" of ")[-1]) if "of" in iteration.inner_text() else -1  # noqa: E731
    button.wait_for()
    assert button.inner_text() == "Pause the engine"
    count = "Number(document.querySelector('td[data-testid=iteration]').textContent.split(' of ')[1])"
    page.wait_for_function(f"{count} > 3")
    first, met = picture(page), seen()
    page.wait_for_function(f"{count} > {met}")
    button.click()
    page.get_by_text("Resume the engine").wait_for()
    page.wait_for_timeout(300)  # the last picture before the pause is on its way
    stood, drawn = seen(), picture(page)
    assert 3 < stood < 50 and drawn != first
    page.wait_for_timeout(600)
    assert (seen(), picture(page)) == (stood, drawn)
    button.click()
    page.get_by_text("51 of 51").wait_for()
    button.wait_for(state="hidden")
    page.wait_for_timeout(100)
    opaque = page.locator(".te-player").evaluate(
        """({player}) => { const [{canvas}] = player.strips, dpr = devicePixelRatio;
            const column = x => canvas.getContext("2d").getImageData(x * dpr, 30 * dpr, 1, 80 * dpr).data;
            for (let x = 0; ; x++) if (player.strips[0].hit(x, 60)?.i === 40) return column(x + 3).some(Boolean); }"""
    )
    assert opaque  # what the page did not know when it was opened has been drawn
    page.close()


@pytest.mark.slow
def test_the_lesson_runs_and_its_pictures_play(lab, browser):
    """Lesson 02 itself, as a reader has it: run all cells, then play static batching beside Orca."""
    address, folder = lab
    shutil.copy(ROOT / "lessons/02_orca.ipynb", folder)
    page = run_all(browser, f"{address}/tree/02_orca.ipynb?reset")
    player = page.locator('.te-player[aria-label*="static, orca"]').first  # the other one is the playground's
    player.wait_for()
    player.scroll_into_view_if_needed()
    player.get_by_test_id("scrub").press("Home")
    before = player.locator("canvas").first.evaluate("canvas => canvas.toDataURL()")
    player.locator('[data-act="play"]').click()
    position = player.get_by_test_id("position").element_handle()
    page.wait_for_function("element => Number(element.textContent.split(' ')[1]) >= 5", arg=position)
    assert player.locator("canvas").first.evaluate("canvas => canvas.toDataURL()") != before
    page.locator(".te-playground .te-scores").wait_for()
    assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    page.close()
