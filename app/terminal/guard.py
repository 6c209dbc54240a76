"""Escapes control characters in everything that the command line prints.

A file name, a manifest, an endpoint's error or an answer may hold sequences that clear the screen,
rename the window or hide the rest.
"""

import re

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
