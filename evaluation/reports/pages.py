"""Report pages: one Markdown template, which no name or path of a run can break."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: A file of this folder.
        values: The template's variables.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "code": code,
        "form": format,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "percent": percent,
        "share": lambda scores, name: percent(scores[name], scores["interval"].get(name)),
    }
    return environment


def percent(value: float | None, interval: Sequence[float] | None = None) -> str:
    """Return a share in percent, with its interval if there is one; a dash for None."""
    if value is None or not math.isfinite(value):
        return "–"
    around = f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    return f"{100 * value:.1f}{around}"


def code(text: str) -> str:
    """Return untrusted text as code that cannot break a line or a table, or act as markup."""
    text = text.encode(errors="backslashreplace").decode()  # a path that is not UTF-8
    visible = "".join(each if each.isprintable() else " " for each in text)
    line = " ".join(visible.split()).replace("|", "\\|").replace("`", "ˋ")
    return f"`{line}`"
