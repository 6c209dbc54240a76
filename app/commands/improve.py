"""`hopgate improve` and `promote`: a better router from your questions, and back."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from hopgate.commands.label import announce, reckoned
from hopgate.commands.options import ANSWERING, INDEX_HELP, Asking, command, request_context
from hopgate.common.errors import TRAINING, require
from hopgate.terminal import pages

DECIDING = ("alpha", "router", "profile")
IMPROVE_HELP = INDEX_HELP | {
    "alpha": "The α of your requests. Default: each router's own.",
    "router": "The router in use, which the candidate is made from: a folder, or builtin.",
    "profile": "The profile to train. auto: the model's own, which is added if there is none.",
}


@command(context=("index", *DECIDING, *ANSWERING), helps=IMPROVE_HELP)
def improve(
    *,
    questions: Path,
    judge: Literal["em", "match", "silver"] = "silver",
    labels: tuple[Path, ...] = (),
    out: Path,
    dry_run: bool = False,
    asking: Asking,
    settings: dict[str, Any],
) -> None:
    """Train a candidate on your questions and say whether it may replace the router.

    Labels the questions, trains on most of them, and compares the candidate with the router in use
    on the others, at the α of your requests. Nothing is replaced: `hopgate promote` does that. Exit
    code 1 if a figure fell. If it is interrupted, the same command resumes.

    Args:
        questions: JSONL as `hopgate harvest` writes it: question; optionally answers, id, dataset.
        judge: Which answers are correct; see label.
        labels: More label rows to train on; repeatable.
        out: Folder to write to.
        dry_run: Only check the input, and say how much the model would be asked.
        asking: How the model is asked.
        settings: Fields of `Context`.
    """
    require("hopgate improve", *TRAINING)
    from hopgate.evaluation.learning import improving
    from hopgate.retrievers.sources import index_path

    context = request_context(settings)
    inputs = improving.Inputs(questions, index_path(context.index), judge, labels)
    rule = improving.Rule(context.router, context.profile, context.alpha)
    answering = {name: value for name, value in settings.items() if name not in DECIDING}
    with asking.job(answering) as job:
        plan = improving.plan(inputs, rule, out, job)
        if dry_run:
            return pages.output(plan, lambda _: pages.line(reckoned(plan)))
        announce(plan, out / improving.LABELLED, job)
        verdict = improving.improve(inputs, rule, out, job)
    pages.output(verdict, _show_verdict, out)
    if not verdict["promote"]:
        pages.note(f"hopgate: not to be promoted: {'; '.join(verdict['reasons'])}")
        raise SystemExit(1)


def _show_verdict(verdict: dict[str, Any], out: Path) -> None:
    """Print both routers' figures, and how to promote the candidate if it may be."""
    for name, compared in verdict["compared"].items():
        rows = {}
        for each in compared["figures"]:
            form = ".2f" if each["name"] == "steps" else ".1%"
            rows[each["name"]] = {
                "in use": format(each["before"], form),
                "candidate": format(each["after"], form),
                "95%: above": format(each["low"], f"+{form}"),
                "95%: below": format(each["high"], f"+{form}"),
                "worse": "worse" if each["worse"] else "",
            }
        columns = ("figure", "in use", "candidate", "95%: above", "95%: below", "=worse")
        pages.table(f"{compared['questions']:,} questions, {name}", columns, rows)
    pages.rows([("out", str(out / "report.md"))])
    if verdict["promote"]:
        name = verdict["router"]["name"]
        to = "ROUTER" if name == "builtin" else shlex.quote(name)
        pages.line(f"Use it: hopgate promote {shlex.quote(str(out))} --to {to}")


@command()
def promote(
    folder: Annotated[Path | None, {"metavar": "[DIR]"}] = None, /, *, to: Path, back: bool = False
) -> None:
    """Put the candidate in DIR in use; the router that it replaces is kept as a version.

    DIR is what `hopgate improve` wrote. Servers take over the router at their next request.

    Args:
        folder: The candidate.
        to: The router to replace.
        back: Put the version in use that was in use before.
    """
    from hopgate.classifiers import versions
    from hopgate.evaluation.learning import promoting

    if back == (folder is not None):
        raise click.UsageError("give DIR, or --back")
    in_use = promoting.promote(folder, to) if folder else versions.back(to)
    pages.output(in_use._asdict() | {"router": str(in_use.router)}, _show_version)


def _show_version(in_use: dict[str, Any]) -> None:
    router = shlex.quote(in_use["router"])
    pages.line(f"{router} is version {in_use['version']} now")
    if in_use["before"] is not None:
        pages.line(
            f"Version {in_use['before']}, in use before, is kept: hopgate promote --back --to "
            f"{router}"
        )
