"""A real headless Chromium for the tests of the page, and what it saw go wrong."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SECONDS = 120  # for what waits on a model, on a busy machine


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the machine's own Chromium; without one, skip what asked for it."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Watch:
    """What a page does beside what it shows.

    Attributes:
        requests: Every address that was asked for, in order.
        troubles: What stood in the console as a warning or an error, what was thrown, dialogs.
    """

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.troubles: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._wrote)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", self._popped_up)

    def clear(self) -> None:
        """Forget all of it."""
        self.requests.clear()
        self.troubles.clear()

    def _wrote(self, message: ConsoleMessage) -> None:
        if message.type in ("warning", "error"):
            self.troubles.append(message.text)

    def _popped_up(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()
