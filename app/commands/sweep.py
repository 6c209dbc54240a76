"""`hopgate sweep`: routers on recorded outcomes, at every α."""

from pathlib import Path
from typing import Annotated, Any

import click

from hopgate.commands.options import RecordedFiles, command
from hopgate.common.strategies import LABELS
from hopgate.terminal import pages
from hopgate.terminal.progress import stage


@command()
def sweep(
    *,
    router: tuple[str, ...] = ("builtin",),
    recorded: RecordedFiles,
    points: Annotated[int, click.IntRange(2, 1001)] = 201,
    out: Path,
    overwrite: bool = False,
) -> None:
    """Replay routers on recorded outcomes at every α: accuracy against steps.

    Writes sweep.json and sweep.png into the folder --out.

    Args:
        router: Folder of a router's weights; repeatable.
        recorded: The outcomes.
        points: Number of α values, evenly from 0 to 1.
        out: Folder to write to.
        overwrite: Replace an existing sweep.
    """
    from hopgate.evaluation.measuring.sweep import run_sweep

    with stage("routing") as advance:
        document = run_sweep(
            router, recorded.profile, recorded.outcomes, points, out, overwrite, advance
        )
    pages.output(document, _show, out)


def _show(document: dict[str, Any], out: Path) -> None:
    """Print some α of each router, the static strategies, and a summary."""
    multi = document["static"]["multi"]
    labels = [f"{label}=shares.{label}" for label in LABELS]
    relative = {"of multi's steps": "steps", "of its accuracy": "accuracy"}
    for name, summary in document["summary"].items():
        found = [row for row in document["rows"] if row["router"] == name]
        shown = {f"α = {row['alpha']:.2g}": row for row in pages.spread(found)}
        shown |= document["static"] | {"oracle": document["oracle"]}
        pages.table(
            f"{name} ({summary['source']}, {summary['profile']})",
            ["", "accuracy", "steps", *relative, *labels],
            {
                at: row | {share: row[of] / multi[of] for share, of in relative.items()}
                for at, row in shown.items()
            },
        )
        pages.page(summary, "share_at_38", "share_at_50", "steps_for_100", "area")
    pages.rows([("out", f"{out / 'sweep.json'}, {out / 'sweep.png'}")])
