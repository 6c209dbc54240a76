"""The process in which documents are parsed, seen from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from hopgate.retrievers.parsers import OUT_OF_MEMORY, Section

MAX_SECONDS = 120.0
"""Longest time for one file: a PDF of some thousands of pages."""
MAX_MEMORY_BYTES = 4 << 30
"""Most memory of the process: twice what 16 MB of HTML take."""


class Worker:
    """Parses files in a process that one of them can take down, but not this process.

    The process starts with the first file, and again after a file that ended it.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[str] | None = None

    def parse(self, file: Path, source: str) -> list[Section]:
        """Return the sections of a file.

        Raises:
            ValueError: It cannot be parsed, or not within the limits of time and memory.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = _started()
        request = {"path": str(file), "source": source, "seconds": MAX_SECONDS}
        started = time.monotonic()
        line = _answer(self._process, json.dumps(request))
        if not line.endswith("\n"):
            self._process.communicate()
            if time.monotonic() - started >= MAX_SECONDS:
                raise ValueError(f"it took over {MAX_SECONDS:g} s to read: convert it to .txt")
            if self._process.returncode == OUT_OF_MEMORY:
                raise ValueError("it takes too much memory to read: convert it to .txt")
            raise ValueError("the process that read it crashed: convert it to .txt")
        reply = json.loads(line)
        if "error" in reply:
            raise ValueError(reply["error"])
        return [Section(*section) for section in reply["sections"]]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _started() -> subprocess.Popen[str]:
    """Start the process, which imports from where this one does (`-P`: from no other folder)."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hopgate.retrievers.parsers", str(MAX_MEMORY_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        encoding="ascii",
    )


def _answer(process: subprocess.Popen[str], request: str) -> str:
    assert process.stdin and process.stdout
    try:
        process.stdin.write(request + "\n")
        process.stdin.flush()
        return process.stdout.readline()
    except OSError:  # it has ended
        return ""
