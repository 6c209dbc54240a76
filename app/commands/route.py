"""`hopgate route`: the router's decision, without an answer."""

from pathlib import Path
from typing import Annotated, Any

import click

from hopgate.commands.options import command, request_context
from hopgate.terminal import pages
from hopgate.terminal.live import route_line
from hopgate.terminal.progress import stage


@command(context=("alpha", "router", "profile"))
def route(
    question: str | None = None,
    /,
    *,
    questions: Annotated[Path | None, {"names": ["--questions", "--input"]}] = None,
    out: Annotated[Path | None, {"names": ["--out", "--output"]}] = None,
    settings: dict[str, Any],
) -> None:
    """Show the router's decision for QUESTION, or for every row of a file.

    Rows keep all their fields and gain `route`: label, probs and alpha.

    Args:
        question: The question.
        questions: JSONL, rows: question.
        out: JSONL to write.
        settings: Fields of `Context`.
    """
    from hopgate.evaluation.measuring import routing
    from hopgate.models import chat
    from hopgate.nodes.run.resources import default_alpha

    context = request_context(settings)
    alpha = context.alpha
    if alpha is None:
        alpha = default_alpha(context, chat.resolve(context.model))
    used = (alpha, context.router, context.profile)
    if (question is None) == (questions is None) or (questions is None) != (out is None):
        raise click.UsageError("give a QUESTION, or --questions with --out")
    if questions is not None and out is not None:
        with stage("routing") as advance:
            pages.output(routing.route_file(questions, out, *used, advance))
    else:
        pages.output(routing.route_one(question or "", *used), _show)


def _show(report: dict[str, Any]) -> None:
    pages.rows([("route", route_line(report))])
    pages.page(report, "reason", "profile", "ms")
