"""Escapes control characters in everything that the command line prints.

A file name, a manifest, an endpoint's error or an answer may hold sequences that clear the screen,
rename the window or hide the rest. `guarded` wraps stdout and stderr, for every line of hopgate
and its libraries. rich styles with such sequences, so it writes past the wrapper through
`pages.SafeConsole`, which escapes the texts that it styles.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

_CONTROL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u2028-\u202e\u2066-\u2069"  # line separators, and characters that change the text direction
    "\ud800-\udfff"  # lone surrogates, as in file names that are not UTF-8
)
_IN_LINES = re.compile(f"[{_CONTROL}]")
_IN_A_LINE = re.compile(f"[{_CONTROL}\t\n]")


def harmless(text: str, *, lines: bool = True) -> str:
    r"""Return a text with its control characters escaped: `\x1b` for the escape character.

    Args:
        text: The text; `\r\n` becomes `\n`.
        lines: Whether it may have several lines; otherwise tabs and newlines are escaped too, so
            that a name cannot look like a line of its own.
    """
    pattern = _IN_LINES if lines else _IN_A_LINE
    return pattern.sub(
        lambda found: found[0].encode("unicode_escape").decode("ascii"), text.replace("\r\n", "\n")
    )


def harmless_json(document: str) -> str:
    r"""Escape the control characters of a JSON document as JSON does: `\u009b`."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


class _Guard:
    """Wraps a stream and escapes control characters on write."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # where rich looks for the stream behind another

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(harmless(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Escape control characters written to stdout and stderr while the context is open."""
    out: Any = _Guard(sys.stdout)
    err: Any = _Guard(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield
