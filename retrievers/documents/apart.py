"""Parsing in a process of its own, since files can make a parser take hours, all memory, or crash.

Requests and replies are lines of JSON; nothing is pickled.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopgate.common.errors import reason
from hopgate.retrievers.documents.cutting import Section
from hopgate.retrievers.documents.parsers import parse, repeated_blocks

MAX_SECONDS = 120.0
"""Longest time for one file: a PDF of some thousands of pages."""
MAX_MEMORY_BYTES = 4 << 30
"""Maximum memory of the process: twice what 16 MB of HTML take."""
_OUT_OF_MEMORY = 3
"""Exit code of a process that needs more memory than it may have."""


class Parser:
    """A process that parses one file at a time; it starts with the first, and again after a crash.

    Its limits are `MAX_SECONDS` for each file, and `MAX_MEMORY_BYTES` on systems that can limit it.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._process: subprocess.Popen[bytes] | None = None

    def parse(
        self, file: Path, kind: str, source: str, repeated: Iterable[str] = ()
    ) -> list[Section]:
        """Parse a file.

        Args:
            file: The file.
            kind: The suffix of its kind.
            source: Its source.
            repeated: Blocks to leave out of a page, see `repeated_blocks`.

        Raises:
            ValueError: It cannot be parsed, or not within the limits.
            RuntimeError: The extra `documents` is missing.
        """
        return [Section(*each) for each in self._call("parse", file, kind, source, repeated)]

    def repeated_blocks(self, pages: Sequence[Path]) -> list[str]:
        """Return the paragraphs that most of some pages share; none if they cannot be read."""
        with suppress(ValueError, RuntimeError):
            return list(self._call("repeated_blocks", *pages))
        return []

    def close(self) -> None:
        """Kill the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _call(self, function: str, *arguments: Any) -> Any:
        if self._process is None or self._process.poll() is not None:
            self._process = _started()
        process, began = self._process, time.monotonic()
        assert process.stdin and process.stdout
        with suppress(OSError):  # it has ended
            request = json.dumps([function, *arguments], default=_plain)
            process.stdin.write(f"{request}\n".encode())
            process.stdin.flush()
            if (line := process.stdout.readline()).endswith(b"\n"):
                reply = json.loads(line)
                if "result" in reply:
                    return reply["result"]
                raise (RuntimeError if reply["missing"] else ValueError)(reply["error"])
        process.communicate()
        if process.returncode == _OUT_OF_MEMORY:
            raise ValueError("it takes too much memory to read: convert it to .txt")
        if time.monotonic() - began >= MAX_SECONDS:
            raise ValueError(f"it took over {MAX_SECONDS:g} s to read: convert it to .txt")
        raise ValueError("the process that read it crashed: convert it to .txt")


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value)


def _started() -> subprocess.Popen[bytes]:
    """Start the process.

    It imports from where this one does (`-P`: from no other folder); Ctrl-C does not reach it.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(MAX_SECONDS), str(MAX_MEMORY_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )


# In the process


def main(seconds: float, memory: int) -> None:
    """Answer requests until the input ends."""
    with suppress(ImportError, OSError, ValueError):  # not every system can
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    gc.set_threshold(100_000, 50, 100)  # documents are large trees: up to twice as fast
    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # a library's output is not a reply
        for request in sys.stdin.buffer:
            faulthandler.dump_traceback_later(seconds, exit=True)
            replies.write(_reply(request))
            replies.flush()
            faulthandler.cancel_dump_traceback_later()


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "parse": parse,
    "repeated_blocks": repeated_blocks,
}


def _reply(request: bytes) -> bytes:
    name, *arguments = json.loads(request)
    try:
        done = {"result": _FUNCTIONS[name](*arguments)}
        return f"{json.dumps(done, ensure_ascii=False)}\n".encode()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as error:  # the process that asked reports it
        failed = {"error": reason(error), "missing": isinstance(error, RuntimeError)}
        return f"{json.dumps(failed)}\n".encode()
    finally:
        gc.collect()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
