"""Running `hopgate` commands: in this process, or in one of their own where that is the point."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest


class Ran(NamedTuple):
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str


def in_process(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Return a function that runs a command in this process.

    Whatever libraries write to the real stdout is captured too.
    """
    from hopgate import cli

    def run_command(*arguments: str | Path) -> Ran:
        capfd.readouterr()
        try:
            code = cli.run([str(each) for each in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Ran(code, *capfd.readouterr())

    return run_command


def run_process(*arguments: str, **environment: str) -> Ran:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "hopgate", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def in_terminal(*arguments: str, out: bool = False) -> Ran:
    """Run a command with a terminal for its stderr, or for both its stdout and its stderr."""
    ours, theirs = pty.openpty()
    seen = bytearray()

    def watch() -> None:
        with contextlib.suppress(OSError):  # what Linux says when the other end is closed
            while piece := os.read(ours, 4096):
                seen.extend(piece)

    watcher = threading.Thread(target=watch)
    watcher.start()
    ran = subprocess.run(
        [sys.executable, "-m", "hopgate", *arguments],
        stdout=theirs if out else subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"},
        timeout=300,
        check=False,
    )
    os.close(theirs)
    watcher.join()
    os.close(ours)
    return Ran(ran.returncode, (ran.stdout or b"").decode(), seen.decode())


def one_line(ran: Ran, code: int, *parts: str) -> None:
    """Assert that a command failed with one line on stderr and nothing on stdout.

    Before it may be the line that says how much a model is asked.
    """
    assert ran.code == code, ran
    assert ran.out == ""
    *before, error = ran.err.splitlines(keepends=True)
    assert all(re.match(r"hopgate: [\d,]+ questions: .* tokens$", line) for line in before), ran.err
    assert error.startswith("hopgate")
    assert error.endswith("\n")
    assert len(error) < 700
    assert "Traceback" not in error
    for part in parts:
        assert part in error


def started(
    arguments: Sequence[str | Path], far_enough: Callable[[], bool], seconds: float = 300
) -> "subprocess.Popen[str]":
    """Start a command in a process of its own and return it once it has come far enough."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hopgate", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    )
    limit = time.monotonic() + seconds
    while not far_enough():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    return process
