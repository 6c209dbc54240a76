"""`hopgate eval retrievalqa` and `hopgate eval qa`: gates and strategies on questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopgate.common.errors import STATISTICS, require
from hopgate.common.files import read_json, sha256
from hopgate.evaluation.measuring import scores
from hopgate.evaluation.measuring.datasets import read_examples, read_retrievalqa
from hopgate.evaluation.measuring.harness import SingleRetrievalGraph, WholeGraph
from hopgate.evaluation.measuring.runner import Job, endpoint, execute, index_identity, make_runs
from hopgate.evaluation.measuring.specs import Variant
from hopgate.evaluation.reports import results
from hopgate.evaluation.reports.drawing import require_matplotlib
from hopgate.evaluation.reports.output import check_folder

PREDICTIONS = "predictions"
"""The folder of the journals, in the folder of the results."""
PARTS = {
    results.RETRIEVALQA: (read_retrievalqa, scores.summarise),
    results.QA: (read_examples, scores.summarise_qa),
}
"""The reader of each benchmark's questions, and the summary of its answers."""


def run(
    benchmark: str,
    data: Path,
    variants: Sequence[Variant],
    job: Job,
    index: Path | None,
    *,
    out: Path,
    limit: int | None = None,
    skip_bad_rows: bool = False,
    prices: Path | None = None,
    baseline: Path | None = None,
    tolerance: float = 0.0,
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Run gates on RetrievalQA, or strategies on other questions, and write the report.

    Args:
        benchmark: `results.RETRIEVALQA` or `results.QA`.
        data: The file of questions; see `hopgate.evaluation.measuring.datasets`.
        variants: The runs; see `hopgate.evaluation.measuring.specs`.
        job: The command's options.
        index: The index to search; None: each question's own passages, of RetrievalQA.
        out: Folder to write to; it is created if needed.
        limit: Use only the first so many questions.
        skip_bad_rows: Leave out rows that cannot be used.
        prices: JSON of prices per million tokens.
        baseline: An earlier `results.json`.
        tolerance: How much lower than the baseline a score may be, 0 to 1.

    Returns:
        The content of `results.json`, a line for each score that is lower than the baseline's, and
        the names of the runs that the baseline lacks.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says where answers are saved.
    """
    require(f"hopgate eval {benchmark}", *STATISTICS, "jinja2")
    check_folder(out)
    require_matplotlib()
    read, summarise = PARTS[benchmark]
    if index is not None:
        job = replace(job, settings={**job.settings, "index": str(index)})
    price = scores.read_price(prices, job.model) if prices else None
    examples, bad = read(data, skip_bad_rows)
    used = {example.id: example for example in examples[:limit]}
    about = {"name": data.name, "sha256": sha256(data), "rows": len(used), "bad_rows": len(bad)}
    names = [each.name for each in variants]
    before = _baseline(benchmark, about, names, out, baseline) if baseline else None
    passages = "given" if index is None else index_identity(index)
    identity = {"data": about["sha256"], "passages": passages}
    runs = make_runs(variants, out / PREDICTIONS, job, identity)
    whole = benchmark == results.QA
    subject = WholeGraph() if whole else SingleRetrievalGraph(given=index is None)
    answers = execute(runs, used, subject, job, out / PREDICTIONS)
    found = results.results_document(
        benchmark=benchmark,
        data=about,
        model=job.model,
        passages=passages,
        endpoint=endpoint(job.model),
        command=job.command,
        runs=[
            {"name": run.name, "settings": run.shown, "scores": summarise(rows, price)}
            for run, rows in zip(runs, answers, strict=True)
        ],
    )
    results.write_report(out, found)
    if before is None:
        return found, [], []
    known = [run["name"] for run in before["runs"]]
    new = [name for name in names if name not in known]
    return found, results.compare(before, found, tolerance), new


def _baseline(
    benchmark: str, data: dict[str, Any], names: Sequence[str], out: Path, path: Path
) -> dict[str, Any]:
    """Read the baseline, and refuse it before any work if it cannot be compared."""
    if path.resolve() == (out / results.DOCUMENT).resolve():
        raise ValueError(
            f"--baseline {path} would be overwritten; copy it elsewhere, or use another --out"
        )
    before = read_json(path, "--baseline")
    results.check_baseline(before, benchmark, data, names)
    return before
