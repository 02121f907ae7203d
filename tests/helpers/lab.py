"""A real JupyterLab that shares nothing with the user's, and notebooks run in it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def jupyterlab(home: Path):
    """The address of a JupyterLab with its settings in `home`, and the folder that it serves."""
    names = ("config", "data", "runtime", "ipython", "path", "settings", "spaces", "work")
    folders = {name: home / name for name in names}
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


def wait_for(address: str, server: subprocess.Popen, log: Path):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            return urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start: {log.read_text()[-2000:]}")


def write_json(path: Path, content: dict):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def write_notebook(path: Path, *sources: str):
    """One cell for each source, not yet run."""
    cells = [
        {
            "cell_type": "code", "execution_count": None, "id": f"cell-{n}", "metadata": {}, "outputs": [],
            "source": source,
        }
        for n, source in enumerate(sources)
    ]  # fmt: skip
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    write_json(path, {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5})


def open_notebook(browser, address: str, width: int = 1400, height: int = 1000):
    """A page with the notebook at this address and a kernel at work."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(60_000)
    page.goto(address)
    page.wait_for_function(
        "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.connectionStatus === 'connected'"
    )
    return page


def run_all(browser, address: str):
    """A page with the notebook at this address, its cells on their way."""
    page = open_notebook(browser, address)
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    return page
