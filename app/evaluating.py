"""Gates and strategies on questions: the commands of `hopgate eval`, and `calibrate --gate`.

All ask many questions, keep each answer on disk as it comes, and go on where they were
when the same command is given again.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.evaluation.writing import check_folder, json_bytes, write_files
from hopgate.plans import Asking, Plan, ask, check, digest, endpoint, make_plan, searched

if TYPE_CHECKING:
    from hopgate.evaluation.asking import Examinee, Question, WholeGraph
    from hopgate.evaluation.qa import System
    from hopgate.evaluation.report import Drop
    from hopgate.evaluation.retrievalqa import Example
    from hopgate.evaluation.specs import Spec

PREDICTIONS, ASKED = "predictions", "asked"
"""Folders of journals, one for each plan, in that of the results."""


class Comparison(NamedTuple):
    """An earlier `results.json`, and by how much a score may be lower than there."""

    baseline: Path
    tolerance: float


class Evaluated(NamedTuple):
    """What a run came to.

    Attributes:
        results: The content of `results.json`.
        drops: Scores that are lower than the baseline's.
        new: Runs that the baseline lacks.
    """

    results: dict[str, Any]
    drops: list["Drop"]
    new: list[str]


class Scoring(NamedTuple):
    """Which questions are asked, and what their answers are held against.

    Attributes:
        limit: Ask only so many questions, the first ones.
        skip_bad_rows: Go on without rows that cannot be used.
        prices: JSON of prices per million tokens.
        comparison: What to compare with.
    """

    limit: int | None = None
    skip_bad_rows: bool = False
    prices: Path | None = None
    comparison: Comparison | None = None


def retrievalqa(
    data: Path,
    gates: Sequence[str],
    out: Path,
    asking: Asking,
    scoring: Scoring,
    index: Path | None = None,
) -> Evaluated:
    """Runs gates on RetrievalQA and writes the report into `out`.

    Args:
        data: The released file, or one in its form.
        gates: Specs, see `hopgate.evaluation.specs`.
        out: Folder to write into; it is made if it is not there.
        asking: The model and how it is asked.
        scoring: Which questions are asked, prices and baseline.
        index: What is searched; None: each question's own passages.

    Raises:
        ValueError: If an input is wrong, or what is in `out` was made with other settings.
        RuntimeError: If the model fails; the message says what is kept, and where.
    """
    from hopgate.evaluation import report, scores
    from hopgate.evaluation.asking import Examinee
    from hopgate.evaluation.plots import require_matplotlib
    from hopgate.evaluation.retrievalqa import read_examples
    from hopgate.evaluation.specs import parse_specs

    check_folder(out)
    require_matplotlib()
    specs = parse_specs(gates)
    run = _read(report.RETRIEVALQA_RUN, read_examples, data, out, asking, scoring, index)
    _check_questions(data, run.asked.values())
    before = _baseline(run, [spec.name for spec in specs])
    plans = _plans(specs, out / PREDICTIONS, asking, run.fixed, index)
    examinee = Examinee(given=index is None)
    results = _answered(run, plans, examinee, scores.summarise)
    report.write_report(out, results)
    return _compared(results, before, scoring.comparison)


def qa(
    data: Path,
    systems: Sequence["System"],
    out: Path,
    asking: Asking,
    scoring: Scoring,
    index: Path,
) -> Evaluated:
    """Runs strategies on questions over an index and writes the report into `out`.

    Args:
        data: See `hopgate.evaluation.questions.read_questions`.
        systems: What to run.
        out: Folder to write into; it is made if it is not there.
        asking: The model and how it is asked.
        scoring: Which questions are asked, prices and baseline.
        index: What is searched.

    Raises:
        ValueError: If an input is wrong, or what is in `out` was made with other settings.
        RuntimeError: If the model fails; the message says what is kept, and where.
    """
    from hopgate.evaluation import qa as answering
    from hopgate.evaluation import qa_report, report
    from hopgate.evaluation.asking import WholeGraph
    from hopgate.evaluation.plots import require_matplotlib
    from hopgate.evaluation.questions import read_questions

    check_folder(out)
    require_matplotlib()
    run = _read(report.QA_RUN, read_questions, data, out, asking, scoring, index)
    before = _baseline(run, [system.name for system in systems])
    folder = out / PREDICTIONS
    plans = [_system_plan(system, folder, asking, run.fixed, index) for system in systems]
    results = _answered(run, plans, WholeGraph(), answering.summarise)
    qa_report.write_report(out, results)
    return _compared(results, before, scoring.comparison)


class _Run(NamedTuple):
    """A benchmark on its questions.

    Attributes:
        benchmark: Its name in `results.json`.
        asked: The questions, by id.
        summary: Of the data.
        passages: What is searched, as reports name it.
        out: Where results go.
        asking: How the model is asked.
        scoring: What answers are held against.
    """

    benchmark: str
    asked: dict[str, "Example"]
    summary: dict[str, Any]
    passages: str
    out: Path
    asking: Asking
    scoring: Scoring

    @property
    def fixed(self) -> dict[str, Any]:
        """What every plan's answers depend on."""
        return {"data": self.summary["sha256"], "passages": self.passages}


def _read(
    benchmark: str,
    read: Callable[[Path, bool], tuple[list["Example"], list[Any]]],
    data: Path,
    out: Path,
    asking: Asking,
    scoring: Scoring,
    index: Path | None,
) -> _Run:
    from hopgate.evaluation.rows import data_summary

    examples, bad = read(data, scoring.skip_bad_rows)
    asked = {example.id: example for example in examples[: scoring.limit]}
    summary = data_summary(data, len(asked), len(bad))
    passages = "given" if index is None else searched(index)
    return _Run(benchmark, asked, summary, passages, out, asking, scoring)


def _answered(
    run: _Run,
    plans: Sequence[Plan],
    examinee: "Examinee | WholeGraph",
    summarise: Callable[..., dict[str, Any]],
) -> dict[str, Any]:
    """Asks everything and gives the content of `results.json`."""
    from hopgate.evaluation import report, scores

    model = plans[0].context.model
    prices = run.scoring.prices
    price = scores.read_price(prices, model) if prices else None
    check(plans, examinee.resources)
    kept = run.out / PREDICTIONS
    answers = ask(plans, run.asked, examinee.answer, examinee.fields, run.asking, kept)
    return report.results_document(
        run.summary,
        model,
        [
            report.Run(plan.name, plan.shown, summarise(rows, price))
            for plan, rows in zip(plans, answers, strict=True)
        ],
        passages=run.passages,
        endpoint=endpoint(model),
        command=run.asking.command,
        date=date.today().isoformat(),
        version=version("hopgate"),
        benchmark=run.benchmark,
    )


def _system_plan(
    system: "System", folder: Path, asking: Asking, fixed: Mapping[str, Any], index: Path
) -> Plan:
    own = dict(system.settings)
    if system.alpha is not None:
        own |= _router(own["router"], own["profile"], asking.model)
    return make_plan(
        system.name,
        folder / f"{system.slug}.jsonl",
        {"index": str(index), **system.settings},
        asking,
        fixed,
        own=own,
        dated=system.dated,
    )


def _router(router: str, profile: str, model: str) -> dict[str, Any]:
    """A router by its name and content, and the profile that is taken of it."""
    from hopgate.classifiers.checkpoint import MANIFEST, router_folder
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.models import chat

    chosen = chosen_profile(router, profile, chat.resolve(model))
    content = digest(router_folder(router) / MANIFEST)
    return {"router": f"{Path(router).name}, SHA-256 {content}", "profile": chosen}


def paraphrases(file: Path, gates: Sequence[str], out: Path, asking: Asking) -> dict[str, Any]:
    """Asks gates about paraphrases and writes `paraphrases.json` and `paraphrases.md`.

    Args:
        file: See `hopgate.evaluation.paraphrases.read_groups`.
        gates: Specs, see `hopgate.evaluation.specs`.
        out: Folder to write into; it is made if it is not there.
        asking: The model and how it is asked.

    Returns:
        The content of `paraphrases.json`.

    Raises:
        ValueError: If an input is wrong, or what is in `out` was made with other settings.
        RuntimeError: If the model fails; the message says what is kept, and where.
    """
    from hopgate.evaluation.paraphrases import document, markdown, read_groups
    from hopgate.evaluation.specs import parse_specs

    check_folder(out)
    specs, groups = parse_specs(gates), read_groups(file)
    fixed = {"data": digest(file)}
    plans = _plans(specs, out / ASKED, asking, fixed)
    forms = [form for group in groups for form in group.forms]
    said = _ask_gates(plans, forms, asking, out / ASKED)
    found = document(
        {"name": file.name, "sha256": fixed["data"]},
        plans[0].context.model,
        groups,
        {plan.name: (plan.shown, rows) for plan, rows in zip(plans, said, strict=True)},
    )
    write_files(
        out, {"paraphrases.md": markdown(found).encode(), "paraphrases.json": json_bytes(found)}
    )
    return found


def calibrate(
    labels: Path,
    settings: Mapping[str, Any],
    asking: Asking,
    *,
    min_recall: float | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Chooses a gate's threshold on labelled questions.

    Args:
        labels: See `hopgate.nodes.demonstrations.read_pool`.
        settings: Of `hopgate.nodes.context.Context`: the gate and what it is asked with.
        asking: The model and how it is asked.
        min_recall: Least share of the questions that need retrieval which get it, 0 to 1; None:
            the best balanced accuracy is looked for.
        out: Folder for `calibration.json`, `calibration.png` and the answers; None keeps nothing.

    Returns:
        As `hopgate.evaluation.gates.calibrate`, with `gate`, `model`, `settings`, `goal`,
        `invalid` (answers without a value; they retrieve at every threshold), `shipped` (what the
        model's own threshold does) and `inputs`.

    Raises:
        ValueError: If an input is wrong, or all labels are of one kind.
        RuntimeError: If the model fails, or `out` cannot be written to.
    """
    from hopgate.evaluation import gate_plots, gates
    from hopgate.evaluation.asking import Question
    from hopgate.evaluation.plots import require_matplotlib
    from hopgate.evaluation.specs import Spec
    from hopgate.nodes.demonstrations import read_pool

    if out is not None:
        check_folder(out)
        require_matplotlib()
    labelled = read_pool(labels)
    needed = [each.retrieve for each in labelled]
    gates.check_goal(needed, min_recall)
    questions = [Question(str(at), each.question) for at, each in enumerate(labelled, start=1)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if out is None else out / ASKED
        spec = Spec(settings["gate"], dict(settings))
        plans = _plans([spec], folder, asking, {"data": digest(labels)})
        (rows,) = _ask_gates(plans, questions, asking, None if out is None else folder)
    values = [1.0 if row["value"] is None else row["value"] for row in rows]
    found = {
        "gate": spec.name,
        "model": plans[0].context.model,
        "settings": plans[0].shown,
        "goal": {} if min_recall is None else {"min_recall": min_recall},
        **gates.calibrate(values, needed, min_recall),
        "shipped": gates.at(rows[0]["threshold"], values, needed),
        "invalid": sum(row["value"] is None for row in rows),
        "inputs": {"labels": labels.name, "sha256": digest(labels)},
    }
    if out is not None:
        picture = gate_plots.png(found, values, needed)
        write_files(out, {"calibration.png": picture, "calibration.json": json_bytes(found)})
    return found


# What all three share


def _plans(
    specs: Sequence["Spec"],
    folder: Path,
    asking: Asking,
    fixed: Mapping[str, Any],
    index: Path | None = None,
) -> list[Plan]:
    """A plan for each gate; see `make_plan`."""
    searched: dict[str, Any] = {} if index is None else {"index": str(index)}
    return [
        make_plan(
            spec.name,
            folder / f"{spec.slug}.jsonl",
            {**searched, **spec.settings},
            asking,
            fixed,
            own=_described(spec),
            dated=spec.dated,
        )
        for spec in specs
    ]


def _described(spec: "Spec") -> dict[str, Any]:
    """A gate's settings; a pool by its name and content."""
    from hopgate.nodes.context import FIXED

    settings = dict(spec.settings)
    if (pool := settings.get("demos", FIXED)) != FIXED:
        settings["demos"] = f"{Path(pool).name}, SHA-256 {digest(Path(pool))}"
    return settings


def _check_questions(data: Path, questions: Iterable["Example"]) -> None:
    from hopgate.nodes.text import check_question

    for each in questions:
        try:
            check_question(each.question)
        except ValueError as error:
            raise ValueError(f"{data}: question {each.id}: {error}") from error


def _ask_gates(
    plans: Sequence[Plan], questions: Sequence["Question"], asking: Asking, kept: Path | None
) -> list[list[Any]]:
    """Asks gates alone about questions; see `ask`."""
    from hopgate.evaluation.asking import GateAlone

    alone = GateAlone()
    check(plans, alone.resources)
    items = {each.id: each for each in questions}
    return ask(plans, items, alone.decide, alone.fields, asking, kept)


def _baseline(run: _Run, names: Sequence[str]) -> dict[str, Any] | None:
    """An earlier `results.json`, refused before any work if it cannot be compared with.

    Raises:
        ValueError: See `hopgate.evaluation.report.compare`.
    """
    from hopgate.evaluation import report

    comparison = run.scoring.comparison
    if comparison is None:
        return None
    if comparison.baseline.resolve() == (run.out / report.DOCUMENT).resolve():
        raise ValueError(
            f"--baseline {comparison.baseline} would be written over; copy it to another place, "
            "or give another --out"
        )
    before = report.read_results(comparison.baseline)
    runs = [each for each in before["runs"] if each["name"] in names]
    later = {**before, "benchmark": run.benchmark, "data": run.summary, "runs": runs}
    report.compare(before, later, comparison.tolerance)
    return before


def _compared(
    results: dict[str, Any], before: dict[str, Any] | None, comparison: Comparison | None
) -> Evaluated:
    from hopgate.evaluation import report

    if comparison is None or before is None:
        return Evaluated(results, [], [])
    drops = report.compare(before, results, comparison.tolerance)
    return Evaluated(results, drops, report.new_runs(before, results))
