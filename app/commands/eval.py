"""`hopgate eval`: gates and strategies with a real model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from hopgate.commands.options import ANSWERING, INDEX_HELP, Asking, command, request_context
from hopgate.terminal import pages

GATE_FIELDS = ("gate", "gate_threshold", "gate_invalid", "demos", "gate_demos", "gate_date")
COLUMNS = {
    "retrievalqa": ("gate", "retrieval=retrieval_accuracy", "match", "em", "f1"),
    "qa": ("strategy", "match", "em", "f1", "steps=retrieval_steps"),
}
COSTS = ("calls=llm_calls", "tokens=tokens.per_question.total", "ms=ms.mean")
Specs = Annotated[tuple[str, ...], {"metavar": "SPEC"}]


@dataclass(frozen=True)
class Benchmark:
    """Says where results go, and which questions are asked.

    Args:
        out: Folder to write to.
        limit: Use only the first N questions.
    """

    out: Path
    limit: Annotated[int | None, click.IntRange(min=1)] = None

    def run(
        self,
        name: str,
        data: Path,
        variants: Sequence[Any],
        index: Path | None,
        asking: Asking,
        settings: dict[str, Any],
    ) -> None:
        """Run a benchmark and show it."""
        from hopgate.evaluation.measuring import benchmarks

        def show(results: dict[str, Any]) -> None:
            title = f"{results['model']}, {results['data']['rows']} questions"
            scores = {each["name"]: each["scores"] for each in results["runs"]}
            pages.table(title, (*COLUMNS[name], *COSTS), scores)
            pages.rows([("out", str(self.out / "report.md"))])

        with asking.job(settings) as job:
            results = benchmarks.run(name, data, variants, job, index, **vars(self))
        pages.output(results, show)


@command(context=("model", "layout", "mode", "rerank", "top_k", "max_evidence_tokens", "today"))
def retrievalqa(
    *,
    data: Path,
    gate: Specs = ("ta-are", "always", "never"),
    passages: Literal["given", "index"] = "given",
    index: Path | None = None,
    benchmark: Benchmark,
    asking: Asking,
    settings: dict[str, Any],
) -> None:
    """Run gates on RetrievalQA: decisions, answers, tokens and time.

    Writes report.md, results.json, plots and every prediction into the folder --out. If it is
    interrupted, the same command resumes.

    Args:
        data: RetrievalQA's JSONL, as released.
        gate: GATE[:key=value,…], repeatable. Keys: date=yes|no, demos=N, pool=FILE, threshold=X,
            layout=inline|turns, invalid=retrieve|direct.
        passages: What retrieval finds: the passages in the data, or those of --index.
        index: Folder of an index, with --passages index.
        benchmark: Questions and results.
        asking: How the model is asked.
        settings: Fields of `Context`.
    """
    from hopgate.evaluation.measuring.specs import parse_specs

    if (passages == "index") != (index is not None):
        raise click.UsageError("give --passages index and --index DIR together")
    request_context(settings)
    benchmark.run("retrievalqa", data, parse_specs(gate), index, asking, settings)


@command(
    context=("index", *GATE_FIELDS, "escalate", "router", "profile", *ANSWERING, "today"),
    defaults={"gate": "off"},
    helps=INDEX_HELP,
)
def qa(
    *,
    data: Path,
    strategies: str = "none,single,multi,adaptive",
    alphas: Annotated[str, {"metavar": "A,…"}] = "0,0.7,1",
    benchmark: Benchmark,
    asking: Asking,
    settings: dict[str, Any],
) -> None:
    """Run strategies on questions over an index: accuracy, steps, calls, tokens and time.

    Gate and router options are for the adaptive strategy. Writes report.md, results.json, a plot
    and every answer into the folder --out. If it is interrupted, the same command resumes.

    Args:
        data: JSONL, rows: question, and answers (a list), ground_truth or answer; id, dataset.
        strategies: Which to run; adaptive: gate and router decide, and each α also runs with
            --escalate.
        alphas: adaptive: one run for each.
        benchmark: Questions and results.
        asking: How the model is asked.
        settings: Fields of `Context`.
    """
    from hopgate.evaluation.measuring.specs import DECIDING, systems
    from hopgate.retrievers.sources import index_path

    context = request_context(settings)
    deciding = {name: settings.pop(name) for name in DECIDING if name in settings}
    deciding |= {name: getattr(context, name) for name in ("gate", "router", "profile")}
    found = systems(strategies, alphas, settings.pop("escalate", 0), deciding)
    benchmark.run("qa", data, found, index_path(context.index), asking, settings)


eval = click.Group(
    "eval", [retrievalqa, qa], help="Measure gates and strategies with a real model."
)
