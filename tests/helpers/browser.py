"""A real browser."""

import shutil
from contextlib import contextmanager

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@contextmanager
def chromium():
    """A headless browser. Raises FileNotFoundError where there is none."""
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        raise FileNotFoundError(f"no Chromium on the PATH: install one named {' or '.join(CHROMIUM)}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()
