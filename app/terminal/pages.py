"""One printer for every result: JSON, a page of names and values, or a table."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import reduce
from operator import getitem
from typing import Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hopgate.terminal.guard import harmless, harmless_json

_Row = TypeVar("_Row")

AS_JSON = "hopgate.json"
"""Whether --json was given, in click's `Context.meta`."""
FORMS = dict.fromkeys(
    (
        *("accuracy", "balanced", "correct", "em", "f1", "match", "retrieval"),
        *("of its accuracy", "of multi's steps", "retrieves if needed", "otherwise"),
    ),
    ".1%",
) | {
    **dict.fromkeys(("A", "B", "C"), ".0%"),
    **dict.fromkeys(("steps", "calls"), ",.2f"),
    **dict.fromkeys(("tokens", "ms"), ",.0f"),
    "alpha": ".3g",
    "auc": ".3f",
}
"""How the figures of a name are shown."""


class SafeConsole(Console):
    """A rich console that escapes control characters in texts and keeps rich's own styles.

    Texts that are laid out, such as those in tables, should be escaped before, so that their
    width is known.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        """Print on stdout or stderr."""
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with escaped texts."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


out = SafeConsole()
err = SafeConsole(stderr=True)


def output(result: Any, show: Callable[..., None] | None = None, *arguments: Any) -> None:
    """Print a command's result: as JSON with --json, else for people.

    Args:
        result: JSON values, a dataclass, or a list of named tuples.
        show: Shows the result; gets it and `arguments`. None: `page`.
        arguments: More for `show`.
    """
    if click.get_current_context().meta[AS_JSON]:
        print_json(result)
    else:
        (show or page)(result, *arguments)


def print_json(result: Any) -> None:
    """Print a result on one line of stdout, with control characters escaped."""
    click.echo(harmless_json(json.dumps(_plain(result), ensure_ascii=False)))


def _plain(result: Any) -> Any:
    if is_dataclass(result) and not isinstance(result, type):
        return asdict(result)
    if isinstance(result, list):
        return [each._asdict() if hasattr(each, "_asdict") else each for each in result]
    return result


def line(*parts: str | tuple[str, str], wrap: bool = False) -> None:
    """Print a line on stdout.

    Args:
        parts: Texts, or texts with a style.
        wrap: Whether to wrap it between words, as suits prose; commands and paths stay whole.
    """
    shown = [part if isinstance(part, tuple) else (part, "") for part in parts]
    escaped = [(harmless(text), style) for text, style in shown]
    out.print(Text.assemble(*escaped), soft_wrap=not wrap)


def note(text: str, mark: str = "") -> None:
    """Print a line on stderr, with an optional yellow mark before it."""
    shown = Text.assemble((mark, "yellow"), " " if mark else "", harmless(text, lines=False))
    err.print(shown, soft_wrap=True)


def page(result: Any, *names: str) -> None:
    """Print the values of a result that are not empty, each after its name.

    Args:
        result: A mapping or a dataclass.
        names: Which values, in this order; none: all.
    """
    document = _plain(result)
    found = {name: document[name] for name in names or document}
    rows(
        [
            (name.replace("_", " ") + " ", value(name, each))
            for name, each in found.items()
            if each or isinstance(each, float)
        ]
    )


def rows(found: Sequence[tuple[str, str]], *, wrap: bool = False) -> None:
    """Print names and texts in two columns."""
    width = max(8, *(len(name) + 1 for name, _ in found))
    for name, text in found:
        line((f"{name:<{width}}", "bold"), text.replace("\n", "\n" + " " * width), wrap=wrap)


def value(name: str, found: Any) -> str:
    """Return a value as people read it, in the form of its name in `FORMS`."""
    match found:
        case None:
            return "–"
        case bool():
            return "yes" if found else "no"
        case int() | float():
            return format(found, FORMS.get(name, ",.4g" if isinstance(found, float) else ","))
        case Mapping():
            return ", ".join(f"{_text(key)} {_inner(key, each)}" for key, each in found.items())
        case list() | tuple():
            return "\n".join(value(name, each) for each in found)
    return _text(found)


def _inner(name: str, found: Any) -> str:
    shown = value(name, found)
    return f"({shown})" if isinstance(found, Mapping) else shown


def _text(found: Any) -> str:
    return harmless(str(found), lines=False)


def table(title: str, columns: Sequence[str], found: Mapping[str, Any]) -> None:
    """Print a table: a first column of names, and others of values.

    Args:
        title: Its title.
        columns: The first column's header, then those of the others. `header=path` takes the value
            from another place than `header`, such as `tokens=tokens.per_question.total`.
        found: Rows by their names.
    """
    first, *others = columns
    places = {header: path or header for header, _, path in (o.partition("=") for o in others)}
    cells = {
        header: [value(header, reduce(getitem, path.split("."), row)) for row in found.values()]
        for header, path in places.items()
    }
    shown = Table(title=Text(_text(title)))
    shown.add_column(first, overflow="fold")  # long names leave the numbers room
    for header, column in cells.items():
        width = max(map(len, [*header.split(), *column]), default=0)
        shown.add_column(header, justify="right", min_width=width)
    for name, *row in zip(found, *cells.values(), strict=True):
        shown.add_row(Text(_text(name)), *map(Text, row))
    out.print(shown)


def spread(points: Sequence[_Row]) -> list[_Row]:
    """Return about eleven of a curve's points, evenly, with its first and last."""
    return [points[at] for at in sorted({i * (len(points) - 1) // 10 for i in range(11)})]


def place(found: Mapping[str, Any]) -> str:
    """Return where a passage or a citation comes from: source, page and section."""
    page = f"page {found['page']}" if "page" in found else ""
    parts = [found.get("source") or "", page, found.get("section") or ""]
    return ", ".join(_text(part) for part in parts if part)


def between(name: str, found: Mapping[str, Any]) -> str:
    """Return a value with its 95% interval, from `found["interval"]`, if it has one."""
    shown, interval = value(name, found[name]), found["interval"][name]
    if interval is None:
        return shown
    low, high = (value(name, each) for each in interval)
    return f"{shown}   95% interval {low} to {high}"
