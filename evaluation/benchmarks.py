"""`hopgate eval retrievalqa` and `hopgate eval qa`: gates and strategies on questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.extras import STATISTICS, require
from hopgate.common.files import BadRow
from hopgate.evaluation import qa, qa_report, report, scores
from hopgate.evaluation.datasets import Example, data_summary, read_examples, read_retrievalqa
from hopgate.evaluation.drawing import require_matplotlib
from hopgate.evaluation.gates import gate_runs
from hopgate.evaluation.harness import SingleRetrievalGraph, WholeGraph
from hopgate.evaluation.output import check_folder
from hopgate.evaluation.runner import (
    Job,
    Run,
    Subject,
    endpoint,
    execute,
    index_identity,
    make_run,
)
from hopgate.evaluation.specs import parse_specs

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
    drops: list[report.Drop]
    new: list[str]


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
        gates: Specs, see `hopgate.evaluation.specs`.
        out: Folder to write to; it is created if needed.
        job: The command's options.
        scoring: Which questions are used, prices and baseline.
        index: What is searched; None: each question's own passages.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says what is saved where.
    """
    require("hopgate eval retrievalqa", *STATISTICS)
    check_folder(out)
    require_matplotlib()
    specs = parse_specs(gates)
    if index is not None:
        job = replace(job, settings={**job.settings, "index": str(index)})
    benchmark = _Benchmark.read(
        report.RETRIEVALQA_RUN, read_retrievalqa, data, out, job, scoring, index
    )
    before = benchmark.baseline([spec.name for spec in specs])
    runs = gate_runs(specs, out / PREDICTIONS, job, benchmark.identity)
    subject = SingleRetrievalGraph(given=index is None)
    results = benchmark.run(runs, subject, scores.summarise)
    report.write_report(out, results)
    return benchmark.compared(results, before)


def run_qa(
    data: Path,
    systems: Sequence[qa.System],
    out: Path,
    job: Job,
    scoring: Scoring,
    index: Path,
) -> Evaluated:
    """Run strategies on questions over an index and write the report into `out`.

    Args:
        data: See `hopgate.evaluation.datasets.read_examples`.
        systems: What to run.
        out: Folder to write to; it is created if needed.
        job: The command's options.
        scoring: Which questions are used, prices and baseline.
        index: What is searched.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says what is saved where.
    """
    require("hopgate eval qa", *STATISTICS)
    check_folder(out)
    require_matplotlib()
    job = replace(job, settings={**job.settings, "index": str(index)})
    benchmark = _Benchmark.read(report.QA_RUN, read_examples, data, out, job, scoring, index)
    before = benchmark.baseline([system.name for system in systems])
    runs = [
        make_run(
            system.name,
            out / PREDICTIONS / f"{system.slug}.jsonl",
            job,
            benchmark.identity,
            system.settings,
            dated=system.dated,
        )
        for system in systems
    ]
    results = benchmark.run(runs, WholeGraph(), qa.summarise)
    qa_report.write_report(out, results)
    return benchmark.compared(results, before)


@dataclass(frozen=True)
class _Benchmark:
    """A benchmark on its questions; `passages` says what is searched, as reports name it."""

    name: str
    examples: dict[str, Example]
    data: dict[str, Any]
    passages: str
    out: Path
    job: Job
    scoring: Scoring

    @classmethod
    def read(
        cls,
        name: str,
        read: Callable[[Path, bool], tuple[list[Example], list[BadRow]]],
        data: Path,
        out: Path,
        job: Job,
        scoring: Scoring,
        index: Path | None,
    ) -> _Benchmark:
        examples, bad = read(data, scoring.skip_bad_rows)
        used = {example.id: example for example in examples[: scoring.limit]}
        summary = data_summary(data, len(used), len(bad))
        passages = "given" if index is None else index_identity(index)
        return cls(name, used, summary, passages, out, job, scoring)

    @property
    def identity(self) -> dict[str, Any]:
        """What the answers of every run depend on."""
        return {"data": self.data["sha256"], "passages": self.passages}

    def baseline(self, names: Sequence[str]) -> dict[str, Any] | None:
        """Read the baseline, and refuse it before any work if it cannot be compared.

        Raises:
            ValueError: See `hopgate.evaluation.report.compare`.
        """
        path = self.scoring.baseline
        if path is None:
            return None
        if path.resolve() == (self.out / report.DOCUMENT).resolve():
            raise ValueError(
                f"--baseline {path} would be overwritten; copy it elsewhere, or use another --out"
            )
        before = report.read_results(path)
        runs = [each for each in before["runs"] if each["name"] in names]
        expected = {**before, "benchmark": self.name, "data": self.data, "runs": runs}
        report.compare(before, expected, self.scoring.tolerance)
        return before

    def run(
        self, runs: Sequence[Run], subject: Subject, summarise: Callable[..., dict[str, Any]]
    ) -> dict[str, Any]:
        """Answer all questions and return the content of `results.json`."""
        model, prices = self.job.model, self.scoring.prices
        price = scores.read_price(prices, model) if prices else None
        answers = execute(runs, self.examples, subject, self.job, self.out / PREDICTIONS)
        return report.results_document(
            self.data,
            model,
            [
                {"name": run.name, "settings": run.shown, "scores": summarise(rows, price)}
                for run, rows in zip(runs, answers, strict=True)
            ],
            passages=self.passages,
            endpoint=endpoint(model),
            command=self.job.command,
            date=date.today().isoformat(),
            version=version("hopgate"),
            benchmark=self.name,
        )

    def compared(self, results: dict[str, Any], before: Mapping[str, Any] | None) -> Evaluated:
        """Return the results with what dropped since the baseline."""
        if before is None:
            return Evaluated(results, [], [])
        drops = report.compare(before, results, self.scoring.tolerance)
        return Evaluated(results, drops, report.new_runs(before, results))
