"""The results document of every evaluation, its files, and comparing it with a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.files import json_bytes
from hopgate.evaluation.reports import pictures
from hopgate.evaluation.reports.drawing import to_png
from hopgate.evaluation.reports.output import write_files
from hopgate.evaluation.reports.pages import render

FORMAT = 1
DOCUMENT, PAGE = "results.json", "report.md"
RETRIEVALQA, QA = "retrievalqa", "qa"
"""The evaluations, named after the commands that run them."""
COMPARED = {RETRIEVALQA: ("retrieval_accuracy", "match", "em", "f1"), QA: ("match", "em", "f1")}
DECISION_F1 = "decision_f1"
PICTURES = {
    RETRIEVALQA: {"gates.png": pictures.draw_gates, "flow.png": pictures.draw_flow},
    QA: {"qa.png": pictures.draw_qa},
}
_EPSILON = 1e-9


class Drop(NamedTuple):
    """A score that is lower than the baseline's.

    Attributes:
        run: The name of the run.
        metric: One of `COMPARED`, or `DECISION_F1`.
        before: The baseline's score, 0 to 1.
        after: The new score.
    """

    run: str
    metric: str
    before: float
    after: float


def results_document(
    evaluation: str,
    data: Mapping[str, Any],
    model: str,
    runs: Sequence[Mapping[str, Any]],
    **about: str | None,
) -> dict[str, Any]:
    """Return the content of a results file: plain JSON, without questions or passages.

    Args:
        evaluation: `RETRIEVALQA` or `QA`.
        data: Name, hash and size of the file of questions.
        model: The full name of the model.
        runs: Each with a unique `name`, its `settings` and its `scores`.
        about: `passages` (`given`, or the index), `endpoint` (host and port of the model's server;
            None: the embedded one) and `command` (the command line).
    """
    return {
        "format": FORMAT,
        "benchmark": evaluation,
        "data": dict(data),
        "model": model,
        **about,
        "date": date.today().isoformat(),
        "version": version("hopgate"),
        "runs": list(runs),
    }


def write_report(out: Path, results: Mapping[str, Any]) -> None:
    """Write the results document, its page and its pictures, each whole or not at all.

    Args:
        out: Folder to write to; it is created if needed.
        results: See `results_document`.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    drawn = {name: to_png(draw(results)) for name, draw in PICTURES[results["benchmark"]].items()}
    files = {PAGE: render("report.md.jinja", **results).encode(), DOCUMENT: json_bytes(results)}
    write_files(out, drawn | files)


def check_baseline(
    baseline: Mapping[str, Any], evaluation: str, data: Mapping[str, Any], names: Iterable[str]
) -> None:
    """Check that results can be compared with a baseline, which may come from anywhere.

    Args:
        baseline: The content of an earlier `results.json`.
        evaluation: `RETRIEVALQA` or `QA`.
        data: Name, hash and size of the file of questions.
        names: The names of the runs.

    Raises:
        ValueError: It has another format or is incomplete, is from another command or other
            questions, or has a run that is missing now.
    """
    if baseline.get("format") != FORMAT:
        raise ValueError(
            f"the baseline is not a results.json of format {FORMAT} (its format is "
            f"{baseline.get('format')!r:.40}); create it again with `hopgate eval`"
        )
    if (was := baseline.get("benchmark", RETRIEVALQA)) != evaluation:
        raise ValueError(
            f"the baseline is from `hopgate eval {was}`; give one from `hopgate eval {evaluation}`"
        )
    try:
        old = {field: baseline["data"][field] for field in ("name", "sha256", "rows")}
        runs = _compared(baseline)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"the baseline is incomplete: {type(error).__name__} at {error}; create it again with "
            "`hopgate eval`"
        ) from error
    for field in ("sha256", "rows"):
        if old[field] != data[field]:
            raise ValueError(
                f"the baseline has other questions: {field} of its data {old['name']} is "
                f"{old[field]}, but {data[field]} of {data['name']}; compare runs on the same "
                "questions"
            )
    if missing := runs.keys() - set(names):
        raise ValueError(
            f"the baseline has runs that are missing now: {', '.join(sorted(missing))}; run these "
            "too, or use a baseline without them"
        )


def compare(
    baseline: Mapping[str, Any], results: Mapping[str, Any], tolerance: float
) -> list[Drop]:
    """Return the scores that dropped by more than a tolerance, for every run of the baseline.

    Metrics are those of `COMPARED`, and `DECISION_F1` where both sides have it.

    Args:
        baseline: The content of an earlier `results.json`; see `check_baseline`.
        results: The new content.
        tolerance: How much lower a score may be, 0 to 1.
    """
    after = _compared(results)
    return [
        Drop(run, metric, was, after[run][metric])
        for run, scores in _compared(baseline).items()
        for metric, was in scores.items()
        if metric in after[run] and was - after[run][metric] > tolerance + _EPSILON
    ]


def _compared(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the compared scores of each run, without those that it lacks."""
    metrics = COMPARED[document.get("benchmark", RETRIEVALQA)]
    found = {}
    for run in document["runs"]:
        scores = {metric: run["scores"][metric] for metric in metrics}
        if decision := run["scores"].get("decision"):
            scores[DECISION_F1] = decision["f1"]
        if scores.get("retrieval_accuracy", 0) is None:  # no question must retrieve
            del scores["retrieval_accuracy"]
        for metric, value in scores.items():
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise TypeError(f"{metric}, which is {value!r:.40}")
        found[str(run["name"])] = scores
    return found
