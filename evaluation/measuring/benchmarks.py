"""`hopgate eval retrievalqa` and `hopgate eval qa`: gates and strategies on questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.errors import STATISTICS, require
from hopgate.common.files import BadRow
from hopgate.evaluation.measuring import scores
from hopgate.evaluation.measuring.datasets import (
    Example,
    data_summary,
    read_examples,
    read_retrievalqa,
)
from hopgate.evaluation.measuring.harness import SingleRetrievalGraph, WholeGraph
from hopgate.evaluation.measuring.runner import Job, endpoint, execute, index_identity, make_runs
from hopgate.evaluation.measuring.specs import Variant, parse_specs
from hopgate.evaluation.reports import results
from hopgate.evaluation.reports.drawing import require_matplotlib
from hopgate.evaluation.reports.output import check_folder

PREDICTIONS = "predictions"
"""The folder of the journals, in the folder of the results."""


class Scoring(NamedTuple):
    """Which questions are used, and what the scores are compared with.

    Attributes:
        limit: Use only the first so many questions.
        skip_bad_rows: Leave out rows that cannot be used.
        prices: JSON of prices per million tokens.
        baseline: An earlier `results.json`.
        tolerance: How much lower than the baseline a score may be.
    """

    limit: int | None = None
    skip_bad_rows: bool = False
    prices: Path | None = None
    baseline: Path | None = None
    tolerance: float = 0.0


class Evaluated(NamedTuple):
    """The outcome of a benchmark.

    Attributes:
        results: The content of `results.json`.
        drops: Scores that are lower than the baseline's.
        new: Runs that the baseline lacks.
    """

    results: dict[str, Any]
    drops: list[results.Drop]
    new: list[str]


class _Benchmark(NamedTuple):
    """How a benchmark reads, asks and scores its questions; `name` is that of its command."""

    name: str
    read: Callable[[Path, bool], tuple[list[Example], list[BadRow]]]
    subject: Callable[[], WholeGraph | SingleRetrievalGraph]
    summarise: Callable[..., dict[str, Any]]


def run_retrievalqa(
    data: Path,
    gates: Sequence[str],
    out: Path,
    job: Job,
    scoring: Scoring,
    index: Path | None = None,
) -> Evaluated:
    """Run gates on RetrievalQA and write the report into `out`.

    Args:
        data: The released file, or one of the same form.
        gates: Specs, see `hopgate.evaluation.measuring.specs`.
        out: Folder to write to; it is created if needed.
        job: The command's options.
        scoring: Which questions are used, prices and baseline.
        index: What is searched; None: each question's own passages.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says what is saved where.
    """
    benchmark = _Benchmark(
        results.RETRIEVALQA,
        read_retrievalqa,
        lambda: SingleRetrievalGraph(given=index is None),
        scores.summarise,
    )
    return _run(benchmark, data, parse_specs(gates), out, job, scoring, index)


def run_qa(
    data: Path,
    systems: Sequence[Variant],
    out: Path,
    job: Job,
    scoring: Scoring,
    index: Path,
) -> Evaluated:
    """Run strategies on questions over an index and write the report into `out`.

    Args:
        data: See `hopgate.evaluation.measuring.datasets.read_examples`.
        systems: What to run, see `hopgate.evaluation.measuring.specs.systems`.
        out: Folder to write to; it is created if needed.
        job: The command's options.
        scoring: Which questions are used, prices and baseline.
        index: What is searched.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says what is saved where.
    """
    benchmark = _Benchmark(results.QA, read_examples, WholeGraph, scores.summarise_qa)
    return _run(benchmark, data, systems, out, job, scoring, index)


def _run(
    benchmark: _Benchmark,
    data: Path,
    variants: Sequence[Variant],
    out: Path,
    job: Job,
    scoring: Scoring,
    index: Path | None,
) -> Evaluated:
    require(f"hopgate eval {benchmark.name}", *STATISTICS, "jinja2")
    check_folder(out)
    require_matplotlib()
    if index is not None:
        job = replace(job, settings={**job.settings, "index": str(index)})
    model = job.model
    price = scores.read_price(scoring.prices, model) if scoring.prices else None
    examples, bad = benchmark.read(data, scoring.skip_bad_rows)
    used = {example.id: example for example in examples[: scoring.limit]}
    about = data_summary(data, len(used), len(bad))
    before = _baseline(benchmark.name, about, variants, out, scoring)
    passages = "given" if index is None else index_identity(index)
    identity = {"data": about["sha256"], "passages": passages}
    runs = make_runs(variants, out / PREDICTIONS, job, identity)
    answers = execute(runs, used, benchmark.subject(), job, out / PREDICTIONS)
    found = results.results_document(
        benchmark.name,
        about,
        model,
        [
            {"name": run.name, "settings": run.shown, "scores": benchmark.summarise(rows, price)}
            for run, rows in zip(runs, answers, strict=True)
        ],
        endpoint=endpoint(model),
        passages=passages,
        command=job.command,
    )
    results.write_report(out, found)
    if before is None:
        return Evaluated(found, [], [])
    drops = results.compare(before, found, scoring.tolerance)
    return Evaluated(found, drops, results.new_runs(before, found))


def _baseline(
    name: str, data: dict[str, Any], variants: Sequence[Variant], out: Path, scoring: Scoring
) -> dict[str, Any] | None:
    """Read the baseline, and refuse it before any work if it cannot be compared."""
    path = scoring.baseline
    if path is None:
        return None
    if path.resolve() == (out / results.DOCUMENT).resolve():
        raise ValueError(
            f"--baseline {path} would be overwritten; copy it elsewhere, or use another --out"
        )
    before = results.read_results(path)
    names = [each.name for each in variants]
    runs = [each for each in before["runs"] if each["name"] in names]
    expected = {**before, "benchmark": name, "data": data, "runs": runs}
    results.compare(before, expected, scoring.tolerance)
    return before
