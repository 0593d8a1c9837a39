"""Start the system's chromium for tests that look at pages as a reader does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def started_chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # an extra of its own, which the other tests do not need

    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "There is no chromium on the path: install it (Debian: apt-get install chromium)."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
