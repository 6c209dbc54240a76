"""Options and output that several modules of commands share."""

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import click

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)
index_option = click.option(
    "--index",
    default="sample",
    show_default=True,
    help="Folder of an index; sample is the collection that ships.",
)
mode_option = click.option(
    "--mode",
    type=click.Choice(["auto", "dense", "bm25", "hybrid"]),
    default="auto",
    show_default=True,
    help="Search by vectors, by words, or both; auto: the best that was measured.",
)
rerank_option = click.option(
    "--rerank",
    default="",
    metavar="CROSS_ENCODER",
    help="Order what was found anew by this cross-encoder (folder or hub name).",
)
router_option = click.option(
    "--router", default="builtin", show_default=True, help="Folder of the router's weights."
)
profile_option = click.option(
    "--profile",
    default="auto",
    show_default=True,
    help="Which LLM's outcomes the router follows; auto: the one most like the model.",
)
model_option = click.option(
    "--model",
    default="auto",
    show_default=True,
    help="openai:NAME (with OPENAI_API_KEY or OPENAI_BASE_URL), local:smollm2, or auto.",
)


GATES = ("auto", "ta-are", "vanilla", "confidence", "draft", "always", "never", "off")


def print_json(document: Any) -> None:
    """Print a document on one line of stdout."""
    click.echo(json.dumps(document, ensure_ascii=False))


def _day(context: click.Context, option: click.Parameter, value: str | None) -> date | None:
    try:
        return date.fromisoformat(value) if value else None
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no date such as 2024-02-01.") from error


concurrency_option = click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Most questions at a time.",
)
today_option = click.option(
    "--today",
    callback=_day,
    metavar="YYYY-MM-DD",
    help="The date that prompts name. Default: that of the day on which the run began.",
)
ask_again_option = click.option("--overwrite", is_flag=True, help="Ask everything again.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="Ask only the first so many questions."
)
skip_bad_option = click.option(
    "--skip-bad-rows", is_flag=True, help="Go on without rows that cannot be used."
)


def asking_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how many questions are asked of a model."""
    for option in (ask_again_option, today_option, concurrency_option):
        command = option(command)
    return command
