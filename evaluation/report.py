"""Results documents, comparing them with a baseline, and the report of a RetrievalQA run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.files import json_bytes, read_json
from hopgate.evaluation import charts
from hopgate.evaluation.output import write_files
from hopgate.evaluation.pages import code, costs, percent, settings, table, what_was_run
from hopgate.evaluation.published import RETRIEVALQA
from hopgate.evaluation.scores import ANSWERABLE, OUTCOMES

FORMAT = 1
DOCUMENT, PAGE, GATES, FLOW = "results.json", "report.md", "gates.png", "flow.png"
RETRIEVALQA_RUN, QA_RUN = "retrievalqa", "qa"
"""The benchmarks, named after the commands that run them."""
COMPARED = {
    RETRIEVALQA_RUN: ("retrieval_accuracy", "match", "em", "f1"),
    QA_RUN: ("match", "em", "f1"),
}
DECISION_F1 = "decision_f1"
_EPSILON = 1e-9
_MEANING = {"retrieval_accuracy": "Retrieval accuracy", "retrieval_rate": "Share with a retrieval"}

_NOTES = """\
- Retrieval accuracy is the share of must-retrieve questions for which the gate retrieves. It is
  100% for `always` by definition and 0% for `never`: a gate is worth its calls if match stays
  near that of `always` with fewer retrievals.
- Match is the published metric: the prediction contains a gold answer, both normalised (lower
  case, no punctuation, no articles). It compares letters, not words, so gold "12" matches "2012",
  and a long answer that lists many names gains. EM and F1 compare whole words.
- In square brackets: the 95% bootstrap interval over the questions. The runs share their
  questions, so two runs may differ more reliably than their intervals suggest. At 0% and 100% it
  has no width, and says nothing about other questions.
- In the flow, "I don't know" is never correct.
- Invalid: the gate's reply was neither Yes nor No. In the paper that means no retrieval; here it
  means retrieval, unless the run has `invalid=direct`.
- Published figures are for the authors' 1,271 questions (GPT-4: 250 of them), prompts and parser.
- Tokens, calls and cost count everything sent and received, the gate's call included. Calls with
  0 tokens mean that the endpoint does not count them; then there is no cost. Milliseconds are per
  question, while other questions ran concurrently."""


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
    data: Mapping[str, Any],
    model: str,
    runs: Sequence[Mapping[str, Any]],
    *,
    passages: str,
    endpoint: str | None,
    command: str,
    date: str,
    version: str,
    benchmark: str = RETRIEVALQA_RUN,
) -> dict[str, Any]:
    """Return the content of `results.json`: plain JSON, without questions or passages.

    Args:
        data: See `hopgate.evaluation.datasets.data_summary`.
        model: The full name of the model.
        runs: At least one, each with a unique `name`, its `settings` and its `scores`.
        passages: What was searched: `given`, or the index.
        endpoint: Host and port of the model's server; None: the embedded one.
        command: The command line.
        date: YYYY-MM-DD.
        version: The version of hopgate.
        benchmark: A key of `COMPARED`.

    Raises:
        ValueError: There are no runs, or two have the same name.
    """
    names = [run["name"] for run in runs]
    if not runs or len(set(names)) < len(names):
        raise ValueError(f"the runs are {names}; give at least one, and each name once")
    return {
        "format": FORMAT,
        "benchmark": benchmark,
        "data": dict(data),
        "model": model,
        "endpoint": endpoint,
        "passages": passages,
        "command": command,
        "date": date,
        "version": version,
        "runs": [dict(run) for run in runs],
    }


def write_report(out: Path, results: Mapping[str, Any]) -> None:
    """Write `results.json`, `report.md`, `gates.png` and `flow.png`, each whole or not at all.

    Args:
        out: Folder to write to; it is created if needed.
        results: See `results_document`.

    Raises:
        RuntimeError: matplotlib is not installed, or `out` cannot be written to.
    """
    files = {
        GATES: charts.gates_png(results),
        FLOW: charts.flow_png(results),
        PAGE: page(results).encode(),
        DOCUMENT: json_bytes(results),
    }
    write_files(out, files)


# Comparing


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
        ValueError: A side has another format or is incomplete, the sides are from different
            commands, data or questions, a run of the baseline is missing, or the tolerance is
            out of range.
    """
    if not 0 <= tolerance <= 1:
        raise ValueError(f"--tolerance is {tolerance}; it must be from 0 to 1")
    before, after = _scores_by_run(baseline, "baseline"), _scores_by_run(results, "results")
    if (was := _benchmark(baseline)) != (now := _benchmark(results)):
        raise ValueError(
            f"the baseline is from `hopgate eval {was}`; give one from `hopgate eval {now}`"
        )
    _check_same_data(baseline["data"], results["data"])
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
    """Return the names of runs that the baseline lacks, which were compared with nothing."""
    before = _scores_by_run(baseline, "baseline")
    return [name for name in _scores_by_run(results, "results") if name not in before]


def _check_same_data(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for field in ("sha256", "rows"):
        if before[field] != now[field]:
            raise ValueError(
                f"the baseline has other questions: {field} of its data {before['name']} is "
                f"{before[field]}, but {now[field]} of {now['name']}; compare runs on the same "
                "questions"
            )


def _benchmark(document: Mapping[str, Any]) -> str:
    return str(document.get("benchmark", RETRIEVALQA_RUN))


def _scores_by_run(document: Any, what: str) -> dict[str, dict[str, float]]:
    """Return the compared scores of each run, from a document that may be anything."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        there = document.get("format") if isinstance(document, Mapping) else document
        raise ValueError(
            f"{what} is not a results.json of format {FORMAT} (its format is {there!r:.40}); "
            "create it again with `hopgate eval`"
        )
    try:
        for field in ("name", "sha256", "rows"):
            document["data"][field]
        metrics = COMPARED[_benchmark(document)]
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


# The page


def page(results: Mapping[str, Any]) -> str:
    """Return the content of `report.md`."""
    runs = results["runs"]
    sections = [
        f"# RetrievalQA: gates of {code(results['model'])}",
        what_was_run(results),
        "## Runs\n\nPercent, with 95% intervals in square brackets.",
        _quality(runs),
        f"![Retrieval accuracy and match of each run beside the paper's]({GATES})",
        "### Published\n\nRetrieval accuracy / match (RetrievalQA, table 1).",
        _published(),
        "## Cost\n\nMeans per question, unless stated otherwise.",
        costs(runs, "gate"),
        *_parts("## New world and long tail", runs, "by_kind", "retrieval_accuracy"),
        *_parts("## By source", runs, "by_source", "retrieval_accuracy"),
        *(_parts("## By need", runs, "by_need", "retrieval_rate") if _has_answerable(runs) else ()),
        *_decisions(runs),
        "## Where the questions went\n\nQuestions, by whether a retrieval was made.",
        f"![Flow from the decision to the answer]({FLOW})",
        _flows(runs),
        "## Settings",
        settings(runs),
        f"## How to read this\n\n{_NOTES}",
    ]
    return "\n\n".join(sections) + "\n"


def _quality(runs: Sequence[Mapping[str, Any]]) -> str:
    header = (
        "gate", "retrieval accuracy", "match", "EM", "F1", "retrieves", "“I don't know”", "invalid"
    )  # fmt: skip
    return table(header, ([code(run["name"]), *_qualities(run["scores"])] for run in runs))


def _qualities(scores: Mapping[str, Any]) -> list[str]:
    intervals = scores["interval"]
    wide = [percent(scores[name], intervals[name]) for name in ("retrieval_accuracy", "match")]
    rest = ("em", "f1", "retrieval_rate", "unknown", "invalid")
    return [*wide, *(percent(scores[name]) for name in rest)]


def _published() -> str:
    rows = (
        [row.model]
        + [
            f"{percent(gate.retrieval)} / {percent(gate.match)}"
            for gate in (row.vanilla, row.ta_are, row.always)
        ]
        for row in RETRIEVALQA
    )
    return table(("model", "vanilla", "TA-ARE", "always"), rows)


def _parts(title: str, runs: Sequence[Mapping[str, Any]], by: str, metric: str) -> list[str]:
    """Return a metric / match of each run in each group; nothing without groups."""
    counts = {name: part["n"] for name, part in runs[0]["scores"][by].items()}
    if not counts:
        return []
    header = ["gate", *(f"{code(name)} (n = {count:,})" for name, count in counts.items())]
    rows = (
        [code(name), *(f"{percent(p[metric])} / {percent(p['match'])}" for p in parts)]
        for name, parts in ((run["name"], run["scores"][by].values()) for run in runs)
    )
    return [f"{title}\n\n{_MEANING[metric]} / match.", table(header, rows)]


def _has_answerable(runs: Sequence[Mapping[str, Any]]) -> bool:
    return ANSWERABLE in runs[0]["scores"]["by_need"]


def _decisions(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    judged = [(run["name"], run["scores"]["decision"]) for run in runs]
    if not all(scores for _, scores in judged):
        return []
    names = ("accuracy", "precision", "recall", "f1")
    rows = (
        [code(name), f"{scores['n']:,}", *(percent(scores[each]) for each in names)]
        for name, scores in judged
    )
    title = (
        "## The decision itself\n\nRetrieving against `param_knowledge_answerable`; precision, "
        "recall and F1 are means over the two classes."
    )
    header = ("gate", "questions", "accuracy", "macro precision", "macro recall", "macro F1")
    return [title, table(header, rows)]


def _flows(runs: Sequence[Mapping[str, Any]]) -> str:
    ways = {"yes": "retrieved", "no": "not retrieved"}
    header = [
        "gate",
        *(f"{way}: {charts.NAMES[each]}" for way in ways.values() for each in OUTCOMES),
    ]
    rows = (
        [code(run["name"])]
        + [str(run["scores"]["flow"][way][each]) for way in ways for each in OUTCOMES]
        for run in runs
    )
    return table(header, rows)
