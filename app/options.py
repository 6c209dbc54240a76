"""Options and output that several modules of commands share."""

import json
from collections.abc import Callable
from datetime import date
from typing import Any

import click

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)
model_option = click.option(
    "--model",
    default="auto",
    show_default=True,
    help="openai:NAME (with OPENAI_API_KEY or OPENAI_BASE_URL), local:smollm2, or auto.",
)


def print_json(document: Any) -> None:
    """Print a document on one line of stdout."""
    click.echo(json.dumps(document, ensure_ascii=False))


def _day(context: click.Context, option: click.Parameter, value: str | None) -> date | None:
    try:
        return date.fromisoformat(value) if value else None
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no date such as 2024-02-01.") from error


def asking_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how many questions are asked of a model."""
    for option in (
        click.option("--overwrite", is_flag=True, help="Ask everything again."),
        click.option(
            "--today",
            callback=_day,
            metavar="YYYY-MM-DD",
            help="The date that prompts name. Default: that of the day on which the run began.",
        ),
        click.option(
            "--concurrency",
            type=click.IntRange(1, 256),
            default=4,
            show_default=True,
            help="Most questions at a time.",
        ),
    ):
        command = option(command)
    return command
