"""The results document of every evaluation, its files, and comparing it with a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.files import json_bytes, read_json
from hopgate.evaluation.reports import pictures
from hopgate.evaluation.reports.output import write_files
from hopgate.evaluation.reports.pages import render

FORMAT = 1
DOCUMENT, PAGE = "results.json", "report.md"
RETRIEVALQA, QA, GATE = "retrievalqa", "qa", "gate"
"""The evaluations, named after the commands that run them."""
COMPARED = {
    RETRIEVALQA: ("retrieval_accuracy", "match", "em", "f1"),
    QA: ("match", "em", "f1"),
}
DECISION_F1 = "decision_f1"
PICTURES = {
    RETRIEVALQA: {"gates.png": pictures.gates_png, "flow.png": pictures.flow_png},
    QA: {"qa.png": pictures.qa_png},
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
        evaluation: `RETRIEVALQA`, `QA` or `GATE`.
        data: Name, hash and size of the file of questions.
        model: The full name of the model.
        runs: Each with a unique `name`, its `settings` and its `scores`.
        about: For `RETRIEVALQA` and `QA`: `passages` (`given`, or the index), `endpoint` (host and
            port of the model's server; None: the embedded one) and `command` (the command line).
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
        RuntimeError: matplotlib is not installed, or `out` cannot be written to.
    """
    drawn = {name: draw(results) for name, draw in PICTURES[results["benchmark"]].items()}
    files = {PAGE: render("report.md.jinja", **results).encode(), DOCUMENT: json_bytes(results)}
    write_files(out, drawn | files)


def read_results(path: Path) -> dict[str, Any]:
    """Read a `results.json` to compare with.

    Raises:
        ValueError: It cannot be read or has another format. The message names the file.
    """
    found = read_json(path, "baseline")
    _scores_by_run(found, f"baseline {path}")
    return found


def compare(
    baseline: Mapping[str, Any], results: Mapping[str, Any], tolerance: float
) -> list[Drop]:
    """Return the scores that dropped by more than a tolerance, for every run of the baseline.

    Metrics are those of `COMPARED`, and `DECISION_F1` where both sides have it. Runs that only
    `results` has are not compared: see `new_runs`.

    Args:
        baseline: The content of an earlier `results.json`.
        results: The new content.
        tolerance: How much lower a score may be, 0 to 1.

    Raises:
        ValueError: The baseline has another format or is incomplete, the sides are from different
            commands, data or questions, a run of the baseline is missing, or the tolerance is
            out of range.
    """
    if not 0 <= tolerance <= 1:
        raise ValueError(f"--tolerance is {tolerance}; it must be from 0 to 1")
    before, after = _scores_by_run(baseline, "baseline"), _scores_by_run(results, "results")
    if (was := _evaluation(baseline)) != (now := _evaluation(results)):
        raise ValueError(
            f"the baseline is from `hopgate eval {was}`; give one from `hopgate eval {now}`"
        )
    old, new = baseline["data"], results["data"]
    if differing := [field for field in ("sha256", "rows") if old[field] != new[field]]:
        field = differing[0]
        raise ValueError(
            f"the baseline has other questions: {field} of its data {old['name']} is "
            f"{old[field]}, but {new[field]} of {new['name']}; compare runs on the same questions"
        )
    if missing := [name for name in before if name not in after]:
        raise ValueError(
            f"the baseline has runs that are missing now: {', '.join(missing)}; run these too, "
            "or use a baseline without them"
        )
    return [
        Drop(run, metric, was, after[run][metric])
        for run in before
        for metric, was in before[run].items()
        if metric in after[run] and was - after[run][metric] > tolerance + _EPSILON
    ]


def new_runs(baseline: Mapping[str, Any], results: Mapping[str, Any]) -> list[str]:
    """Return the names of the runs that the baseline lacks."""
    before = {run["name"] for run in baseline["runs"]}
    return [run["name"] for run in results["runs"] if run["name"] not in before]


def _evaluation(document: Mapping[str, Any]) -> str:
    return str(document.get("benchmark", RETRIEVALQA))


def _scores_by_run(document: Mapping[str, Any], what: str) -> dict[str, dict[str, float]]:
    """Return the compared scores of each run, from a document that may come from anywhere."""
    if document.get("format") != FORMAT:
        raise ValueError(
            f"{what} is not a results.json of format {FORMAT} (its format is "
            f"{document.get('format')!r:.40}); create it again with `hopgate eval`"
        )
    try:
        for field in ("name", "sha256", "rows"):
            document["data"][field]
        metrics = COMPARED[_evaluation(document)]
        return {str(run["name"]): _compared(run["scores"], metrics) for run in document["runs"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{what} is incomplete: {type(error).__name__} at {error}; create it again with "
            "`hopgate eval`"
        ) from error


def _compared(scores: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, float]:
    found = {metric: scores[metric] for metric in metrics}
    if scores.get("decision") is not None:
        found[DECISION_F1] = scores["decision"]["f1"]
    if found.get("retrieval_accuracy", 0) is None:  # no question must retrieve
        del found["retrieval_accuracy"]
    for metric, value in found.items():
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise TypeError(f"{metric}, which is {value!r:.40}")
    return found
