"""The results document of every evaluation, its files, and comparing it with a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hopgate.common.files import json_bytes, shown
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


def results_document(**fields: Any) -> dict[str, Any]:
    """Return the content of a results file: plain JSON, without questions or passages.

    Args:
        fields: `benchmark` (`RETRIEVALQA` or `QA`), `data` (name, hash and size of the file of
            questions), `model` (its full name), `passages` (`given`, or the index), `endpoint`
            (host and port of the model's server; None: the embedded one), `command` (the command
            line) and `runs`, each with a unique `name`, its `settings` and its `scores`.
    """
    about = {"date": date.today().isoformat(), "version": version("hopgate")}
    return {"format": FORMAT, **about, **fields}


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
    try:
        was = {"format": baseline["format"], "benchmark": baseline.get("benchmark", RETRIEVALQA)}
        was |= {"sha256": baseline["data"]["sha256"], "rows": baseline["data"]["rows"]}
        missing = _compared(baseline).keys() - set(names)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"the baseline is not a whole results.json ({type(error).__name__}: {error}); create "
            "it again with `hopgate eval`"
        ) from error
    now = {"format": FORMAT, "benchmark": evaluation}
    now |= {name: data[name] for name in ("sha256", "rows")}
    for name in now:
        if was[name] != now[name]:
            raise ValueError(
                f"the baseline's {name} is {shown(was[name])}, not {shown(now[name])}; give one "
                f"from `hopgate eval {evaluation}` on the same questions"
            )
    if missing:
        raise ValueError(
            f"the baseline has runs that are missing now: {', '.join(sorted(missing))}; run these "
            "too, or use a baseline without them"
        )


def compare(baseline: Mapping[str, Any], results: Mapping[str, Any], tolerance: float) -> list[str]:
    """Return a line for each score that dropped by more than a tolerance.

    Metrics are those of `COMPARED`, and `DECISION_F1` where both sides have it, for every run of
    the baseline.

    Args:
        baseline: The content of an earlier `results.json`; see `check_baseline`.
        results: The new content.
        tolerance: How much lower a score may be, 0 to 1.
    """
    after = _compared(results)
    return [
        f"{run}: {metric} fell from {was:.4f} to {after[run][metric]:.4f}"
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
        found[str(run["name"])] = {name: float(value) for name, value in scores.items()}
    return found
