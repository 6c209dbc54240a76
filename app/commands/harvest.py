"""`hopgate harvest`: questions that users asked."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import click

from hopgate.commands.options import command
from hopgate.terminal.pages import output
from hopgate.terminal.progress import stages


@command()
def harvest(
    source: str,
    /,
    *,
    out: Path,
    sample: Annotated[int, click.IntRange(min=1)] = 1_000,
    since: Annotated[datetime | None, {"metavar": "YYYY-MM-DD"}] = None,
    exclude: Annotated[tuple[str, ...], {"metavar": "REGEX"}] = (),
    overwrite: bool = False,
) -> None:
    """Draw questions that users asked from SOURCE, doubtful ones with a larger chance.

    SOURCE is an SQLite file or a PostgreSQL URI of stored threads, or the address of a LangGraph
    server, whose token is read from HOPGATE_TOKEN. Who asked is not written.

    Args:
        source: Where the threads are.
        out: JSONL of questions to write.
        sample: Maximum number of questions.
        since: Leave out questions that were asked before this day (UTC).
        exclude: Leave out questions that match, beside those with e-mail addresses, long numbers
            and the like; repeatable.
        overwrite: Replace an existing file.
    """
    from hopgate.evaluation.learning import harvest as harvesting

    with stages() as progress:
        report = harvesting.harvest(
            source,
            out,
            size=sample,
            since=since.replace(tzinfo=UTC) if since else None,
            exclude=exclude,
            overwrite=overwrite,
            progress=progress,
        )
    output(report)
