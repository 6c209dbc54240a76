"""The report of `hopgate improve`: both routers' figures, and the questions whose route changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopgate.common.strategies import FLARE_NAMES, LABELS, STRATEGIES
from hopgate.evaluation.learning.outcomes import Outcome
from hopgate.evaluation.learning.verdicts import STEPS, Comparison, Figure
from hopgate.evaluation.reports.drawing import to_png
from hopgate.evaluation.reports.pages import code, percent, table
from hopgate.evaluation.reports.pictures import draw_sweep

PAGE, PICTURE = "report.md", "replay.png"
MOST_SHOWN = 200
"""Questions with a changed route that the page lists."""
MOST_CHARS = 200

_NOTES = """\
- Both routers were replayed on the same recorded outcomes; no model was asked for this. In square
  brackets: 95% bootstrap interval of the difference over the questions.
- Accuracy: the strategy that the router chose answered correctly, by the judge above. A step is one
  retrieval. Share answered: the chosen strategy gave an answer other than "I don't know". Area: the
  mean of the best accuracy within each step budget up to multi-step's, over all α.
- A figure that fell beyond chance, its whole interval below 0, stops the candidate. Steps stop it
  if they rose beyond chance at an α where accuracy did not.
- This page holds texts of questions and answers."""


@dataclass(frozen=True)
class Replayed:
    """Both routers, replayed on one set of questions.

    Attributes:
        rows: The questions.
        comparison: The figures.
        labels: [2, questions], what the two decide at the α of requests: 0, 1, 2 for A, B, C.
        sweep: See `measuring.sweep.tabulated`; None if multi-step was never correct.
    """

    rows: Sequence[Outcome]
    comparison: Comparison
    labels: tuple[Sequence[int], Sequence[int]]
    sweep: Mapping[str, Any] | None


def files(verdict: Mapping[str, Any], replayed: Mapping[str, Replayed]) -> dict[str, bytes]:
    """Return the files of the report by name.

    Args:
        verdict: The content of `verdict.json`.
        replayed: Both routers on each set of questions; may be empty.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    drawn = next((each.sweep for each in replayed.values() if each.sweep), None)
    pictures = {PICTURE: to_png(draw_sweep(drawn))} if drawn else {}
    return pictures | {PAGE: page(verdict, replayed).encode()}


def page(verdict: Mapping[str, Any], replayed: Mapping[str, Replayed]) -> str:
    """Return the content of `report.md`; arguments as `files`."""
    sections = [
        f"# A candidate for {code(verdict['router']['name'])}",
        _verdict(verdict),
        _inputs(verdict),
    ]
    for name, each in replayed.items():
        sections += list(_section(name, each, verdict["alpha"]))
    sections.append(f"## How to read this\n\n{_NOTES}")
    return "\n\n".join(sections) + "\n"


def _verdict(verdict: Mapping[str, Any]) -> str:
    if verdict["promote"]:
        return "**May be promoted**: no figure fell beyond chance."
    return "\n".join(["**Not to be promoted:**", "", *(f"- {each}" for each in verdict["reasons"])])


def _inputs(verdict: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in verdict["questions"].items())
    floor = "none" if verdict["floor"] is None else percent(verdict["floor"])
    return "\n".join(
        [
            f"- Questions: {counts}",
            f"- Model: {code(verdict['model'])}, judge: {verdict['judge']}",
            f"- Profile: {code(verdict['router']['profile'])} in use, "
            f"{code(verdict['candidate']['profile'])} of the candidate",
            f"- α of requests: {verdict['alpha']:g}, floor of the share answered: {floor}",
            f"- Date: {verdict['date']}, hopgate {verdict['version']}",
            f"- Command: {code(verdict['command'])}",
        ]
    )


def _section(name: str, replayed: Replayed, alpha: float) -> Iterator[str]:
    comparison = replayed.comparison
    yield f"## {name.capitalize()}: {comparison.questions:,} questions"
    header = ("figure", "α", "in use", "candidate", "difference", "")
    yield table(header, map(_cells, comparison.figures))
    if replayed.sweep and name == "held out":
        yield f"![Accuracy against steps of both routers]({PICTURE})"
    yield f"### Labels at α = {alpha:g}"
    moved = comparison.labels
    yield table(
        ("in use, by the candidate", *LABELS),
        ([old, *(str(moved[old][new]) for new in LABELS)] for old in LABELS),
    )
    yield from _changed(replayed)


def _cells(figure: Figure) -> list[str]:
    steps = figure.name == STEPS
    shown = f"{figure.after - figure.before:+.2f} [{figure.low:+.2f}, {figure.high:+.2f}]"
    if not steps:
        points = [100 * each for each in (figure.after - figure.before, figure.low, figure.high)]
        shown = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*points)
    return [
        figure.name,
        "all" if figure.alpha is None else f"{figure.alpha:g}",
        *(f"{each:.2f}" if steps else percent(each) for each in (figure.before, figure.after)),
        shown,
        "worse" if figure.worse else "",
    ]


def _changed(replayed: Replayed) -> Iterator[str]:
    before, after = replayed.labels
    changed = [
        (row, old, new) for row, old, new in zip(replayed.rows, before, after, strict=True)
        if old != new
    ]  # fmt: skip
    yield f"### Questions whose route changed: {len(changed):,}"
    if changed:
        header = ("question", "in use", "candidate", "answer before", "answer after")
        yield table(header, (_row(*each) for each in changed[:MOST_SHOWN]))
    if len(changed) > MOST_SHOWN:
        yield f"{len(changed) - MOST_SHOWN:,} more are not shown."


def _row(row: Outcome, old: int, new: int) -> Sequence[str]:
    return [
        code(row.row.question[:MOST_CHARS]),
        *(f"{LABELS[at]}, {_outcome(row, at)}" for at in (old, new)),
        *(code(row.answers.get(FLARE_NAMES[at], "–")[:MOST_CHARS]) for at in (old, new)),
    ]


def _outcome(row: Outcome, at: int) -> str:
    if STRATEGIES[at] in row.correct:
        return "right"
    return "wrong" if row.answered is None or row.answered[at] else "“I don't know”"
