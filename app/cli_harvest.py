"""The command `hopgate harvest`."""

from datetime import UTC, datetime
from pathlib import Path

import click

from hopgate.options import FILE, json_option, output


@click.command()
@click.argument("source")
@click.option("--out", required=True, type=FILE, help="JSONL of questions to write.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=1_000,
    show_default=True,
    help="Maximum number of questions.",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    metavar="YYYY-MM-DD",
    help="Leave out questions that were asked before this day (UTC).",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="REGEX",
    help="Leave out questions that match, beside those with e-mail addresses, long numbers and "
    "the like; repeatable.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@json_option
def harvest(
    source: str,
    out: Path,
    sample: int,
    since: datetime | None,
    exclude: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Draw questions that users asked from SOURCE, doubtful ones with a larger chance.

    SOURCE is an SQLite file or a PostgreSQL URI of stored threads, or the address of a LangGraph
    server, whose token is read from HOPGATE_TOKEN. Who asked is not written.
    """
    from hopgate import render
    from hopgate.evaluation import harvest as harvesting

    with render.stages() as progress:
        report = harvesting.harvest(
            source,
            out,
            size=sample,
            since=since.replace(tzinfo=UTC) if since else None,
            exclude=exclude,
            overwrite=overwrite,
            progress=progress,
        )
    output(report, as_json, render.harvested)
