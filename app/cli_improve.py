"""The commands `improve` and `promote`: a better router from your questions, and back."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopgate.classifiers.decision import DEFAULT_ALPHA
from hopgate.options import (
    ANSWERING,
    FILE,
    INDEX_HELP,
    ContextCommand,
    hired,
    job_options,
    json_option,
    judge_options,
    make_job,
    make_judging,
    out_folder_option,
    output,
    request_context,
)

if TYPE_CHECKING:
    from hopgate.evaluation.labelling import Judge

DECIDING = ("alpha", "router", "profile")
IMPROVE_HELP = INDEX_HELP | {
    "alpha": "The α of your requests, where the floor and the changed routes are looked at.",
    "router": "The router in use, which the candidate is made from: a folder, or builtin.",
    "profile": "The profile to train. auto: the model's own, which is added if there is none.",
}


@click.command(cls=ContextCommand, fields=("index", *DECIDING, *ANSWERING), helps=IMPROVE_HELP)
@click.option(
    "--questions",
    required=True,
    type=FILE,
    help="JSONL as `hopgate harvest` writes it: question; optionally answers, id, dataset.",
)
@judge_options("silver")
@click.option("--labels", type=FILE, multiple=True, help="More label rows to train on; repeatable.")
@click.option(
    "--held-out",
    "trusted",
    type=FILE,
    help="Label rows that you trust, to compare on as well; never trained on.",
)
@click.option(
    "--floor",
    type=float,
    help="Smallest share of the held-out questions that the candidate must answer at --alpha, "
    "0 to 1. Default: no less than now, beyond chance.",
)
@out_folder_option
@job_options
@json_option
def improve(
    settings: dict[str, Any],
    questions: Path,
    judge: "Judge",
    min_confidence: float | None,
    judge_model: str | None,
    labels: tuple[Path, ...],
    trusted: Path | None,
    floor: float | None,
    out: Path,
    concurrency: int,
    workers: int | None,
    ray: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Train a candidate on your questions and say whether it may replace the router.

    Labels the questions, trains on most of them, and compares the candidate with the router in use
    on the others. Nothing is replaced: `hopgate promote` does that. Exit code 1 if a figure fell.
    If it is interrupted, the same command resumes.
    """
    from hopgate import render
    from hopgate.evaluation import improving
    from hopgate.retrievers.sources import index_path

    judging = make_judging(judge, min_confidence, judge_model)
    context = request_context(settings)
    answering = {name: value for name, value in settings.items() if name not in DECIDING}
    inputs = improving.Inputs(questions, index_path(context.index), judging, labels, trusted)
    alpha = DEFAULT_ALPHA if context.alpha is None else context.alpha
    rule = improving.Rule(context.router, context.profile, alpha, floor)
    with hired(workers, ray) as hands, render.stages() as progress:
        job = make_job(answering, concurrency, overwrite, progress, hands)
        verdict = improving.improve(inputs, rule, out, job)
    output(verdict, as_json, render.improved, out)
    if not verdict["promote"]:
        first, *others = verdict["reasons"]
        more = f"; and {len(others)} more, see {out / 'report.md'}" if others else ""
        click.echo(f"hopgate: not to be promoted: {first}{more}", err=True)
        raise SystemExit(1)


@click.command()
@click.argument("folder", metavar="[DIR]", type=FILE, required=False)
@click.option("--to", "router", required=True, type=FILE, help="The router to replace.")
@click.option("--back", is_flag=True, help="Put the version in use that was in use before.")
@json_option
def promote(folder: Path | None, router: Path, back: bool, as_json: bool) -> None:
    """Put the candidate in DIR in use; the router that it replaces is kept as a version.

    DIR is what `hopgate improve` wrote, or a kept version in ROUTER.versions. Servers take over
    the router at their next request.
    """
    from hopgate import render
    from hopgate.classifiers import versions
    from hopgate.evaluation import promoting

    if back == (folder is not None):
        raise click.UsageError("give DIR, or --back")
    in_use = promoting.promote(folder, router) if folder else versions.back(router)
    document = in_use._asdict() | {"router": str(in_use.router)}
    output(document, as_json, render.promoted)
