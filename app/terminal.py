"""What the command line prints: control characters in it are shown, not sent to the terminal.

A file name, a manifest, an endpoint's error or an answer may hold sequences that clear the screen,
rename the window or hide what follows. `guarded` puts a guard before stdout and stderr, for every
line of hopgate and its libraries; rich, which styles with such sequences, writes past it through
`render.SafeConsole`, which guards the texts that it styles.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

_CONTROL = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u2028-\u202e\u2066-\u2069"  # line separators; what changes the direction of text
    "\ud800-\udfff"  # lone surrogates, as in file names that are not UTF-8
)
_IN_LINES = re.compile(f"[{_CONTROL}]")
_IN_A_LINE = re.compile(f"[{_CONTROL}\t\n]")


def harmless(text: str, *, lines: bool = True) -> str:
    r"""Return a text with its control characters written out: `\x1b` for the escape character.

    Args:
        text: The text; `\r\n` becomes `\n`.
        lines: Whether it may have several lines; otherwise tabs and newlines are written out too,
            so that a name cannot look like a line of its own.
    """
    pattern = _IN_LINES if lines else _IN_A_LINE
    return pattern.sub(_written, text.replace("\r\n", "\n"))


def _written(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def harmless_json(document: str) -> str:
    r"""Escape the control characters of a JSON document as JSON does: `\u009b`."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


class _Guard:
    """A stream that makes harmless what is written to it, and is otherwise the stream behind it."""

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
    """Make what is written to stdout and stderr harmless while the context is open."""
    with redirect_stdout(_guard(sys.stdout)), redirect_stderr(_guard(sys.stderr)):
        yield


def _guard(stream: Any) -> Any:
    """Put the guard before a stream, if there is one and it has none."""
    return stream if stream is None or isinstance(stream, _Guard) else _Guard(stream)
