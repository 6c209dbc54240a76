"""A real headless Chromium for the tests of the page, with the errors it reports."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
SECONDS = 120  # timeout for steps that wait for a model on a busy machine


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the machine's own Chromium; without one, skip the test."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium found: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Watch:
    """Records the requests and the errors of a page.

    Attributes:
        requests: Every requested address, in order.
        problems: Warnings and errors in the console, uncaught exceptions, dialogs.
    """

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.problems: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._wrote)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", self._popped_up)

    def clear(self) -> None:
        """Clear both lists."""
        self.requests.clear()
        self.problems.clear()

    def _wrote(self, message: ConsoleMessage) -> None:
        if message.type in ("warning", "error"):
            self.problems.append(message.text)

    def _popped_up(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()
