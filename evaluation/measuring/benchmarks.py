"""`hopgate eval retrievalqa` and `hopgate eval qa`: gates and strategies on questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hopgate.common.errors import STATISTICS, require
from hopgate.common.files import sha256
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
) -> dict[str, Any]:
    """Run gates on RetrievalQA, or strategies on other questions, and write the report.

    Args:
        benchmark: `results.RETRIEVALQA` or `results.QA`.
        data: The file of questions; see `hopgate.evaluation.measuring.datasets`.
        variants: The runs; see `hopgate.evaluation.measuring.specs`.
        job: The command's options.
        index: The index to search; None: each question's own passages, of RetrievalQA.
        out: Folder to write to; it is created if needed.
        limit: Use only the first so many questions.

    Returns:
        The content of `results.json`.

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
    used = {example.id: example for example in read(data)[:limit]}
    about = {"name": data.name, "sha256": sha256(data), "rows": len(used)}
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
            {"name": run.name, "settings": run.shown, "scores": summarise(rows)}
            for run, rows in zip(runs, answers, strict=True)
        ],
    )
    results.write_report(out, found)
    return found
