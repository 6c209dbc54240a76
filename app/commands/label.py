"""`hopgate label`: which strategies answer each question."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from hopgate.commands.options import ANSWERING, INDEX_HELP, Asking, command, request_context
from hopgate.terminal import pages

if TYPE_CHECKING:
    from hopgate.evaluation.measuring.runner import Job


@command(context=("index", *ANSWERING), helps=INDEX_HELP)
def label(
    *,
    questions: Path,
    out: Path,
    judge: Literal["em", "match", "silver"] = "em",
    limit: Annotated[int | None, click.IntRange(min=1)] = None,
    dry_run: bool = False,
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
        dry_run: Only check the input, and say how much the model would be asked.
        asking: How the model is asked.
        settings: Fields of `Context`.
    """
    from hopgate.evaluation.learning import labelling
    from hopgate.retrievers.sources import index_path

    index = index_path(request_context(settings).index)
    with asking.job(settings) as job:
        plan = labelling.plan(questions, index, out, judge, job, limit=limit)
        if dry_run:
            return pages.output(plan, lambda _: pages.line(reckoned(plan)))
        announce(plan, out, job)
        report = labelling.label(questions, index, out, judge, job, limit=limit)
    pages.output(report, _show)


def announce(plan: dict[str, Any], out: Path, job: "Job") -> None:
    """Say on stderr how much the model will be asked, unless answers were saved."""
    from hopgate.evaluation.learning.labelling import answers_of

    if job.overwrite or not answers_of(out).exists():
        pages.note(f"hopgate: {reckoned(plan)}")


def reckoned(plan: dict[str, Any]) -> str:
    """Return in words how much a model is asked; see `labelling.plan`."""
    (fewest, most), (least, largest) = plan["calls"], plan["tokens"]
    return (
        f"{plan['questions']:,} questions: {fewest:,} to {most:,} calls, roughly {least:,} to "
        f"{largest:,} tokens"
    )


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
