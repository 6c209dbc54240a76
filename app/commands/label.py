"""`hopgate label`: which strategies answer each question."""

from pathlib import Path
from typing import Annotated, Any, Literal

import click

from hopgate.commands.options import ANSWERING, INDEX_HELP, Asking, command, request_context
from hopgate.terminal import pages


@command(context=("index", *ANSWERING), helps=INDEX_HELP)
def label(
    *,
    questions: Path,
    out: Path,
    judge: Literal["em", "match", "silver"] = "em",
    limit: Annotated[int | None, click.IntRange(min=1)] = None,
    asking: Asking,
    settings: dict[str, Any],
) -> None:
    """Find out which strategies answer each question: no, one or several retrievals.

    Writes a row for each question, for `train-router --cost`, `sweep --labels` and `calibrate
    --labels`. If it is interrupted, the same command resumes.

    Args:
        questions: JSONL, rows: question, and answers (a list), ground_truth or answer; id, dataset.
        out: JSONL of labels to write.
        judge: Correct answers: those that equal an accepted one, contain one (match), or agree with
            the best-supported one (silver), which needs no accepted answers.
        limit: Use only the first N questions.
        asking: How the model is asked.
        settings: Fields of `Context`.
    """
    from hopgate.evaluation.learning import labelling
    from hopgate.retrievers.sources import index_path

    index = index_path(request_context(settings).index)
    with asking.job(settings) as job:
        report = labelling.label(questions, index, out, judge, job, limit=limit)
    pages.output(report, _show)


def _show(report: dict[str, Any]) -> None:
    """Print how good each strategy is, and for how many questions it is the cheapest."""
    columns = {"correct": "accuracy", "cheapest for": "cheapest"}
    columns |= {name: name for name in ("steps", "calls", "ms")}
    pages.table(
        f"{report['model']}, {report['questions']} questions",
        ("strategy", *columns),
        {
            name: {column: report[field][name] for column, field in columns.items()}
            for name in report["accuracy"]
        },
    )
    rest = {"unanswered": report["cheapest"]["unanswered"]}
    pages.page(report | rest, "unanswered", "unclear", "out")
