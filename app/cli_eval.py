"""The commands of `hopgate eval`."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopgate.options import (
    GATES,
    asking_options,
    index_option,
    json_option,
    limit_option,
    model_option,
    print_json,
    profile_option,
    router_option,
    skip_bad_option,
)

if TYPE_CHECKING:
    from datetime import date

    from hopgate.evaluating import Evaluated, Scoring
    from hopgate.plans import Asking

ASKING = ("model", "concurrency", "today", "overwrite")
FILE = click.Path(path_type=Path)
RETRIEVALQA_GATES = ("ta-are", "always", "never")
SPEC = (
    "GATE[:key=value,…], repeatable. Keys: date=yes|no, demos=N, pool=FILE, threshold=X, "
    "layout=inline|turns, invalid=retrieve|direct."
)


@click.group("eval")
def eval_group() -> None:
    """Measure gates and strategies with a real model."""


def out_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the folder that results are written into."""
    return click.option("--out", required=True, type=FILE, help="Folder to write.")(command)


def scoring_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which questions are asked and what answers are held against."""
    for option in (
        click.option(
            "--tolerance",
            type=float,
            default=0.02,
            show_default=True,
            help="By how much a score may be below the baseline's.",
        ),
        click.option(
            "--baseline",
            type=FILE,
            help="An earlier results.json; exit code 1 where a score dropped.",
        ),
        skip_bad_option,
        limit_option,
        click.option(
            "--prices",
            type=FILE,
            help='JSON, money per million tokens: {"MODEL": {"input": 0.15, "output": 0.6}}.',
        ),
    ):
        command = option(command)
    return command


@eval_group.command("retrievalqa")
@click.option("--data", required=True, type=FILE, help="RetrievalQA's JSONL, as released.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    default=RETRIEVALQA_GATES,
    show_default=True,
    metavar="SPEC",
    help=SPEC,
)
@model_option
@out_option
@click.option(
    "--passages",
    type=click.Choice(["given", "index"]),
    default="given",
    show_default=True,
    help="What retrieval finds: the passages in the data, or those of --index.",
)
@click.option("--index", type=FILE, help="Folder of an index, with --passages index.")
@scoring_options
@asking_options
@json_option
def retrievalqa(
    data: Path,
    gates: tuple[str, ...],
    model: str,
    out: Path,
    passages: str,
    index: Path | None,
    prices: Path | None,
    limit: int | None,
    skip_bad_rows: bool,
    baseline: Path | None,
    tolerance: float,
    concurrency: int,
    today: "date | None",
    overwrite: bool,
    as_json: bool,
) -> None:
    """Run gates on RetrievalQA: decisions, answers, tokens, cost and time.

    Writes report.md, results.json, plots and every prediction into the folder --out. Killed and
    started again with the same options, it goes on where it was.
    """
    from hopgate import evaluating, render

    if (passages == "index") != (index is not None):
        raise click.UsageError("give --passages index and --index DIR together")
    with render.stages() as advance:
        evaluated = evaluating.retrievalqa(
            data,
            gates,
            out,
            asking(model, concurrency, today, overwrite, advance),
            scoring(limit, skip_bad_rows, prices, baseline, tolerance),
            index,
        )
    if as_json:
        print_json(evaluated.results)
    else:
        render.retrievalqa(evaluated.results, out)
    _compared(evaluated)


@eval_group.command("qa")
@click.option(
    "--data",
    required=True,
    type=FILE,
    help="JSONL, rows: question, and answers (a list), ground_truth or answer; id, dataset.",
)
@index_option
@click.option(
    "--strategies",
    default="none,single,multi,adaptive",
    show_default=True,
    help="Which to run; adaptive: gate and router decide.",
)
@click.option("--alphas", metavar="A,…", help="adaptive: one run for each.  [default: 0,0.4,1]")
@click.option(
    "--gate",
    type=click.Choice(GATES),
    default="off",
    show_default=True,
    help="adaptive: its gate; off: the router alone decides.",
)
@click.option(
    "--escalate",
    type=click.IntRange(0, 20),
    default=0,
    show_default=True,
    help="adaptive: each α once more, going deeper where an answer is in doubt, until so many "
    "retrievals are spent.",
)
@router_option
@profile_option
@model_option
@out_option
@scoring_options
@asking_options
@json_option
def qa(
    data: Path,
    index: str,
    strategies: str,
    alphas: str | None,
    gate: str,
    escalate: int,
    router: str,
    profile: str,
    model: str,
    out: Path,
    prices: Path | None,
    limit: int | None,
    skip_bad_rows: bool,
    baseline: Path | None,
    tolerance: float,
    concurrency: int,
    today: "date | None",
    overwrite: bool,
    as_json: bool,
) -> None:
    """Run strategies on questions over an index: accuracy, steps, calls, tokens and time.

    Writes report.md, results.json, a plot and every answer into the folder --out. Killed and
    started again with the same options, it goes on where it was.
    """
    from hopgate import evaluating, render
    from hopgate.evaluation.qa import systems
    from hopgate.retrievers.sources import index_path

    with render.stages() as advance:
        evaluated = evaluating.qa(
            data,
            systems(strategies, alphas, gate, router, profile, escalate),
            out,
            asking(model, concurrency, today, overwrite, advance),
            scoring(limit, skip_bad_rows, prices, baseline, tolerance),
            index_path(index),
        )
    if as_json:
        print_json(evaluated.results)
    else:
        render.qa(evaluated.results, out)
    _compared(evaluated)


def _compared(evaluated: "Evaluated") -> None:
    """Say what dropped, and end the command with exit code 1 if anything did."""
    for name in evaluated.new:
        click.echo(f"hopgate: {name}: not in the baseline, so not compared", err=True)
    for drop in evaluated.drops:
        click.echo(
            f"hopgate: {drop.run}: {drop.metric} fell from {drop.before:.4f} to {drop.after:.4f}",
            err=True,
        )
    if evaluated.drops:
        raise SystemExit(1)


@eval_group.command("gate")
@click.option(
    "--paraphrases",
    "file",
    required=True,
    type=FILE,
    help="JSONL, rows: id, questions (two or more forms); or question, paraphrases.",
)
@click.option("--gate", "gates", multiple=True, required=True, metavar="SPEC", help=SPEC)
@model_option
@out_option
@asking_options
@json_option
def gate(
    file: Path,
    gates: tuple[str, ...],
    model: str,
    out: Path,
    concurrency: int,
    today: "date | None",
    overwrite: bool,
    as_json: bool,
) -> None:
    """Ask gates about paraphrases: how often does the wording change the decision?

    Writes paraphrases.json, paraphrases.md and every decision into the folder --out. Killed and
    started again with the same options, it goes on where it was.
    """
    from hopgate import evaluating, render

    with render.stages() as advance:
        found = evaluating.paraphrases(
            file, gates, out, asking(model, concurrency, today, overwrite, advance)
        )
    if as_json:
        print_json(found)
    else:
        render.paraphrases(found, out)


def asking(
    model: str,
    concurrency: int,
    today: "date | None",
    overwrite: bool,
    advance: Callable[[str, int, int], Any],
) -> "Asking":
    """How a model is asked, from the options of `ASKING`."""
    from hopgate.plans import Asking

    command = shlex.join(["hopgate", *sys.argv[1:]])
    return Asking(model, concurrency, today, overwrite, command, advance)


def scoring(
    limit: int | None,
    skip_bad_rows: bool,
    prices: Path | None,
    baseline: Path | None,
    tolerance: float,
) -> "Scoring":
    """What answers are held against, from the options of `scoring_options`."""
    from hopgate.evaluating import Comparison, Scoring

    comparison = Comparison(baseline, tolerance) if baseline else None
    return Scoring(limit, skip_bad_rows, prices, comparison)
