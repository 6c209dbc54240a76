"""Report pages: one Markdown template, which no name or path of a run can break."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

STABILITY = {
    "flips": "groups with a flip",
    "pairs": "pairs that differ",
    "retrieve": "Yes",
    "spread": "spread",
}
"""The measures of `hopgate eval gate`, and their headings."""


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
        "stability": stability_cells,
    }
    environment.globals["STABILITY"] = STABILITY
    return environment


def stability_cells(scores: Mapping[str, Any]) -> list[str]:
    """Return each measure of `STABILITY` with its interval, as it is shown."""
    cells = []
    for name in STABILITY:
        form = ".3f" if name == "spread" else ".0%"
        if score := scores[name]:
            low, high = (format(each, form) for each in score["interval"])
            cells.append(f"{score['value']:{form}} ({low} to {high})")
        else:
            cells.append("–")
    return cells


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a first column of names and others of numbers."""
    align = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, align, *rows))


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
