"""The commands of `hopgate eval`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hopgate.options import (
    ANSWERING,
    FILE,
    INDEX_HELP,
    ContextCommand,
    combined,
    hired,
    job_options,
    json_option,
    limit_option,
    make_job,
    out_folder_option,
    output,
    request_context,
    skip_bad_option,
)

if TYPE_CHECKING:
    from hopgate.evaluation.benchmarks import Evaluated, Scoring
    from hopgate.evaluation.runner import Job

RETRIEVALQA_GATES = ("ta-are", "always", "never")
GATE_FIELDS = ("gate", "gate_threshold", "gate_invalid", "demos", "gate_demos", "gate_date")
SPEC = (
    "GATE[:key=value,…], repeatable. Keys: date=yes|no, demos=N, pool=FILE, threshold=X, "
    "layout=inline|turns, invalid=retrieve|direct."
)


@click.group("eval")
def eval_group() -> None:
    """Measure gates and strategies with a real model."""


def benchmark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of benchmarks: where results go, which questions, and the baseline."""
    return combined(
        out_folder_option,
        click.option(
            "--prices",
            type=FILE,
            help='JSON, money per million tokens: {"MODEL": {"input": 0.15, "output": 0.6}}.',
        ),
        limit_option,
        skip_bad_option,
        click.option(
            "--baseline",
            type=FILE,
            help="An earlier results.json; exit code 1 if a score dropped.",
        ),
        click.option(
            "--tolerance",
            type=float,
            default=0.02,
            show_default=True,
            help="How much lower than the baseline a score may be.",
        ),
        job_options,
        json_option,
    )(command)


@eval_group.command(
    "retrievalqa",
    cls=ContextCommand,
    fields=("model", "layout", "mode", "rerank", "top_k", "max_evidence_tokens", "today"),
)
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
@click.option(
    "--passages",
    type=click.Choice(["given", "index"]),
    default="given",
    show_default=True,
    help="What retrieval finds: the passages in the data, or those of --index.",
)
@click.option("--index", type=FILE, help="Folder of an index, with --passages index.")
@benchmark_options
def retrievalqa(
    settings: dict[str, Any],
    data: Path,
    gates: tuple[str, ...],
    passages: str,
    index: Path | None,
    out: Path,
    **options: Any,
) -> None:
    """Run gates on RetrievalQA: decisions, answers, tokens, cost and time.

    Writes report.md, results.json, plots and every prediction into the folder --out. If it is
    interrupted, the same command resumes.
    """
    from hopgate import render
    from hopgate.evaluation.benchmarks import run_retrievalqa

    if (passages == "index") != (index is not None):
        raise click.UsageError("give --passages index and --index DIR together")
    request_context(settings)
    run = partial(run_retrievalqa, data, gates, out, index=index)
    _benchmark(run, settings, render.retrievalqa, out, **options)


@eval_group.command(
    "qa",
    cls=ContextCommand,
    fields=("index", *GATE_FIELDS, "escalate", "router", "profile", *ANSWERING, "today"),
    defaults={"gate": "off"},
    helps=INDEX_HELP,
)
@click.option(
    "--data",
    required=True,
    type=FILE,
    help="JSONL, rows: question, and answers (a list), ground_truth or answer; id, dataset.",
)
@click.option(
    "--strategies",
    default="none,single,multi,adaptive",
    show_default=True,
    help="Which to run; adaptive: gate and router decide, and each α also runs with --escalate.",
)
@click.option("--alphas", metavar="A,…", help="adaptive: one run for each.  [default: 0,0.7,1]")
@benchmark_options
def qa(
    settings: dict[str, Any],
    data: Path,
    strategies: str,
    alphas: str | None,
    out: Path,
    **options: Any,
) -> None:
    """Run strategies on questions over an index: accuracy, steps, calls, tokens and time.

    Gate and router options are for the adaptive strategy. Writes report.md, results.json, a plot
    and every answer into the folder --out. If it is interrupted, the same command resumes.
    """
    from hopgate import render
    from hopgate.evaluation.benchmarks import run_qa
    from hopgate.evaluation.qa import DECIDING, systems
    from hopgate.retrievers.sources import index_path

    context = request_context(settings)
    deciding = {name: settings.pop(name) for name in DECIDING if name in settings}
    deciding |= {name: getattr(context, name) for name in ("gate", "router", "profile")}
    found = systems(strategies, alphas, settings.pop("escalate", 0), deciding)
    run = partial(run_qa, data, found, out, index=index_path(context.index))
    _benchmark(run, settings, render.qa, out, **options)


@eval_group.command("gate", cls=ContextCommand, fields=("model", "layout", "today"))
@click.option(
    "--paraphrases",
    "file",
    required=True,
    type=FILE,
    help="JSONL, rows: id, questions (two or more forms); or question, paraphrases.",
)
@click.option("--gate", "gates", multiple=True, required=True, metavar="SPEC", help=SPEC)
@out_folder_option
@job_options
@json_option
def gate(
    settings: dict[str, Any],
    file: Path,
    gates: tuple[str, ...],
    out: Path,
    concurrency: int,
    workers: int | None,
    ray: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Ask gates about paraphrases: how often does the wording change the decision?

    Writes paraphrases.json, paraphrases.md and every decision into the folder --out. If it is
    interrupted, the same command resumes.
    """
    from hopgate import render
    from hopgate.evaluation.paraphrases import run_paraphrases

    request_context(settings)
    with hired(workers, ray) as hands, render.stages() as progress:
        job = make_job(settings, concurrency, overwrite, progress, hands)
        found = run_paraphrases(file, gates, out, job)
    output(found, as_json, render.paraphrases, out)


def _benchmark(
    run: "Callable[[Job, Scoring], Evaluated]",
    settings: dict[str, Any],
    show: Callable[[dict[str, Any], Path], None],
    out: Path,
    *,
    concurrency: int,
    workers: int | None,
    ray: str | None,
    overwrite: bool,
    as_json: bool,
    **scoring: Any,
) -> None:
    """Run a benchmark, show it, and exit with code 1 if a score dropped."""
    from hopgate import render
    from hopgate.evaluation.benchmarks import Scoring

    with hired(workers, ray) as hands, render.stages() as progress:
        job = make_job(settings, concurrency, overwrite, progress, hands)
        evaluated = run(job, Scoring(**scoring))
    output(evaluated.results, as_json, show, out)
    for name in evaluated.new:
        click.echo(f"hopgate: {name}: not in the baseline, so not compared", err=True)
    for drop in evaluated.drops:
        click.echo(
            f"hopgate: {drop.run}: {drop.metric} fell from {drop.before:.4f} to {drop.after:.4f}",
            err=True,
        )
    if evaluated.drops:
        raise SystemExit(1)
