"""The command line.

Rules for every command:

`--json` prints one JSON document on stdout and nothing else there; progress goes to
stderr. Exit code 0 done, 2 wrong usage or input, 1 anything else; errors are one line,
without a traceback unless `--debug` is given.
"""

import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hopgate import cli_eval
from hopgate.options import (
    GATES,
    ask_again_option,
    asking_options,
    concurrency_option,
    index_option,
    json_option,
    limit_option,
    mode_option,
    model_option,
    print_json,
    profile_option,
    rerank_option,
    router_option,
    skip_bad_option,
)

if TYPE_CHECKING:
    from hopgate.evaluation.labelling import Judge
    from hopgate.nodes.context import Context
    from hopgate.retrievers.building import BuildReport


def number_or_name(value: str | float) -> float | str:
    """Return a number as a float; else the text, which names a setting kept with the router."""
    try:
        return float(value)
    except ValueError:
        return str(value)


alpha_option = click.option(
    "--alpha",
    type=number_or_name,
    metavar="NUMBER|NAME",
    default=0.4,
    show_default=True,
    help="0 cheapest to 1 most reliable, or a name that `calibrate` saved.",
)
demos_option = click.option(
    "--demos",
    metavar="FILE",
    default="fixed",
    show_default=True,
    help="JSONL of questions; the nearest that need retrieval become the gate's demonstrations.",
)
layout_option = click.option(
    "--layout",
    type=click.Choice(["auto", "inline", "turns"]),
    default="auto",
    show_default=True,
    help="Prompts as one message, or demonstrations as chat turns; auto: what suits the model.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="hopgate")
@click.option("--debug", is_flag=True, help="Show tracebacks and logs; allowed anywhere.")
def cli(debug: bool) -> None:
    """Adaptive retrieval: decide whether to retrieve, how deep, and show why."""


@cli.command()
@click.argument("question")
@index_option
@mode_option
@rerank_option
@model_option
@alpha_option
@click.option("--gate", type=click.Choice(GATES), default="auto", show_default=True)
@click.option(
    "--gate-threshold",
    type=float,
    help="What means retrieval, 0 to 1. confidence: least P(Yes); draft: least uncertainty of the "
    "direct answer. Default: the model's own.",
)
@demos_option
@layout_option
@click.option(
    "--strategy",
    type=click.Choice(["auto", "none", "single", "multi"]),
    default="auto",
    show_default=True,
    help="auto: gate and router decide; otherwise this path is forced.",
)
@click.option(
    "--escalate",
    type=int,
    default=0,
    show_default=True,
    help="Go one strategy deeper where the answer is unknown or its citations do not hold, until "
    "so many retrievals are spent.",
)
@router_option
@profile_option
@click.option("--thread", help="Keep a conversation under this id; follow-ups then work.")
@click.option(
    "--stream",
    is_flag=True,
    help="Print each event as a JSON line on stdout as it happens; the last is the result.",
)
@json_option
def ask(question: str, thread: str | None, stream: bool, as_json: bool, **settings: Any) -> None:
    """Answer QUESTION, with sources and the reason for every decision."""
    import asyncio
    from contextlib import nullcontext

    from hopgate import asking, live, render

    if stream and as_json:
        raise click.UsageError("give --stream or --json, not both")
    context = _context(**settings)
    with nullcontext(print_json) if stream else live.view(quiet=as_json) as on_event:
        result = asyncio.run(asking.ask(question, context, thread, on_event=on_event))
    document = {key: result[key] for key in asking.SHOWN}
    if stream:
        print_json({"event": "result", **document})
    elif as_json:
        print_json(document)
    else:
        render.answer(result)


@cli.command()
@click.argument("question", required=False)
@click.option("--input", "source", type=click.Path(path_type=Path), help="JSONL, rows: question.")
@click.option("--output", "target", type=click.Path(path_type=Path), help="JSONL to write.")
@alpha_option
@router_option
@profile_option
@json_option
def route(
    question: str | None,
    source: Path | None,
    target: Path | None,
    alpha: float,
    router: str,
    profile: str,
    as_json: bool,
) -> None:
    """Show the router's decision for QUESTION, or for every row of a file.

    Rows keep all their fields and gain `route`: label, probs and alpha.
    """
    from hopgate import render, routing

    alpha = _context(alpha=alpha, router=router, profile=profile).alpha
    if (question is None) == (source is None) or (source is None) != (target is None):
        raise click.UsageError("give a QUESTION, or --input with --output")
    if source is not None and target is not None:
        with render.progress("routing") as advance:
            report = routing.route_file(source, target, alpha, router, profile, advance)
    else:
        report = routing.route_one(question or "", alpha, router, profile)
    if as_json:
        print_json(report)
    else:
        render.routed(report)


@cli.command()
@click.argument("query")
@index_option
@click.option("-k", default=5, show_default=True, help="Most passages to show.")
@mode_option
@rerank_option
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only passages with this source, title, page, section, id or text; repeatable.",
)
@json_option
def search(
    query: str,
    index: str,
    k: int,
    mode: str,
    rerank: str,
    where: tuple[str, ...],
    as_json: bool,
) -> None:
    """Search an index, or what else --index names, without asking a model."""
    from hopgate import render
    from hopgate.nodes.text import check_question
    from hopgate.retrievers.sources import open_source

    if not query.strip():
        raise click.UsageError("the query is empty; give some words to search for.")
    with render.status("searching", quiet=as_json):
        source = open_source(index, mode, rerank, _fields(where))
        (hits,) = source.search([check_question(query)], k)
    if as_json:
        print_json(hits)
    else:
        render.hits(hits)


def _fields(where: tuple[str, ...]) -> dict[str, str] | None:
    """Read FIELD=VALUE pairs."""
    fields: dict[str, str] = {}
    for each in where:
        name, equals, value = each.partition("=")
        if not equals:
            raise click.UsageError(f"--where {each!r}: give FIELD=VALUE, such as source=ferry.md")
        if name in fields:
            raise click.UsageError(f"--where names {name!r} twice")
        fields[name] = value
    return fields or None


@cli.group("index")
def index_group() -> None:
    """Build, change and check indexes."""


@index_group.command("build")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option(
    "--encoder",
    default="minilm",
    show_default=True,
    help="minilm, contriever, contriever-msmarco, or a model's folder or hub name.",
)
@click.option(
    "--factory",
    help="FAISS's factory string, e.g. Flat or IVF4096,SQ8. Default: what suits the collection.",
)
@click.option(
    "--query-prefix",
    help="Put before each query, e.g. 'query: '. Default: the model's own.",
)
@click.option("--passage-prefix", help="Put before each passage. Default: the model's own.")
@json_option
def index_build(
    paths: tuple[Path, ...],
    out: Path,
    encoder: str,
    factory: str | None,
    query_prefix: str | None,
    passage_prefix: str | None,
    as_json: bool,
) -> None:
    """Index files and folders into the folder --out; what is there already is not encoded again.

    Killed and started again, it goes on where it was.
    """
    from hopgate import render
    from hopgate.retrievers.building import build_index
    from hopgate.retrievers.encoders import Encoder, load_encoder

    chosen: str | Encoder = encoder
    if query_prefix is not None or passage_prefix is not None:
        chosen = load_encoder(encoder, query_prefix, passage_prefix)
    with render.stages() as progress:
        report = build_index(paths, out, chosen, progress, factory, render.note)
    _changed(report, as_json)


@index_group.command("add")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--index", required=True, type=click.Path(path_type=Path), help="Folder to change.")
@click.option("--encoder", help="Where the index's encoder is now, if it has moved.")
@json_option
def index_add(paths: tuple[Path, ...], index: Path, encoder: str | None, as_json: bool) -> None:
    """Add files and folders to an index; a document that it has already is replaced."""
    from hopgate import render
    from hopgate.retrievers.building import add

    with render.stages() as progress:
        report = add(paths, index, encoder, progress, render.note)
    _changed(report, as_json)


@index_group.command("delete")
@click.argument("sources", nargs=-1)
@click.option("--id", "ids", multiple=True, help="A passage to delete, by its id; repeatable.")
@click.option("--index", required=True, type=click.Path(path_type=Path), help="Folder to change.")
@json_option
def index_delete(
    sources: tuple[str, ...], ids: tuple[str, ...], index: Path, as_json: bool
) -> None:
    """Delete documents from an index, by their SOURCES (or patterns such as 'reports/*')."""
    from hopgate import render
    from hopgate.retrievers.building import delete

    with render.stages() as progress:
        report = delete(index, sources, ids, progress)
    _changed(report, as_json)


def _changed(report: "BuildReport", as_json: bool) -> None:
    from dataclasses import asdict

    from hopgate import render

    if as_json:
        print_json(asdict(report))
    else:
        render.built(report)


@index_group.command("verify")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--encoder", help="Where the index's encoder is now, if it has moved.")
@json_option
def index_verify(path: Path, encoder: str | None, as_json: bool) -> None:
    """Check every byte of an index, and that its parts belong together."""
    from dataclasses import asdict

    from hopgate import render
    from hopgate.retrievers.verifying import verify

    with render.status("verifying", quiet=as_json):
        report = verify(path, encoder)
    if as_json:
        print_json(asdict(report))
    else:
        render.verified(report)
    if report.problems:
        raise SystemExit(1)


@index_group.command("info")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def index_info(path: Path, as_json: bool) -> None:
    """Show what an index holds and which encoder it needs."""
    from hopgate import render
    from hopgate.retrievers.manifest import info

    manifest = info(path)
    if as_json:
        print_json(manifest)
    else:
        render.manifest(path, manifest)


@cli.command()
@click.option(
    "--questions",
    required=True,
    type=click.Path(path_type=Path),
    help="JSONL, rows: question, and answers (a list), ground_truth or answer; id, dataset.",
)
@index_option
@model_option
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="JSONL of labels to write."
)
@click.option(
    "--judge",
    type=click.Choice(["em", "match"]),
    default="em",
    show_default=True,
    help="Right is an answer that is an accepted one, or (match) that holds one.",
)
@concurrency_option
@limit_option
@skip_bad_option
@ask_again_option
@json_option
def label(
    questions: Path,
    index: str,
    model: str,
    out: Path,
    judge: "Judge",
    concurrency: int,
    limit: int | None,
    skip_bad_rows: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Ask each question with no, one and several retrievals: which strategies answer it?

    Writes a row a question for `train-router --cost`, `sweep --labels` and `calibrate --labels`.
    Killed and started again with the same options, it goes on where it was.
    """
    from hopgate import labelling, render
    from hopgate.retrievers.sources import index_path

    with render.stages() as advance:
        report = labelling.label(
            questions,
            index_path(index),
            out,
            judge,
            cli_eval.asking(model, concurrency, None, overwrite, advance),
            limit=limit,
            skip_bad_rows=skip_bad_rows,
        )
    if as_json:
        print_json(report)
    else:
        render.labelled(report)


@cli.command("train-router")
@click.option(
    "--cost",
    required=True,
    multiple=True,
    metavar="[PROFILE=]FILE",
    help="Labels of your LLM (JSONL: id, question, correct, label A, B or C); repeatable, "
    "for several files or several LLMs.",
)
@click.option(
    "--reliability",
    type=click.Path(path_type=Path),
    help="Labels B (single-hop) and C (multi-hop); required unless --add-to is given.",
)
@click.option(
    "--add-to",
    metavar="ROUTER",
    help="Add your LLM to a copy of this router (builtin or a folder) without retraining it: for "
    "labels of a few hundred questions.",
)
@click.option(
    "--base",
    default="builtin",
    show_default=True,
    help="builtin, minilm (a frozen encoder under a small layer), or a T5 to start from.",
)
@click.option(
    "--objective",
    type=click.Choice(["flare", "utility"]),
    help="flare: hard labels, as published. utility: the outcomes of all strategies. Default: "
    "flare for a pretrained T5 and for labels without `correct`, else utility.",
)
@click.option(
    "--asked",
    type=int,
    help="utility: number of questions put to the LLMs, if the cost files leave out those that no "
    "strategy answered.",
)
@click.option(
    "--profile",
    default="custom",
    show_default=True,
    help="Name of the LLM, for cost files without PROFILE=.",
)
@click.option("--epochs", type=int, help="Default: depends on the base; published: 20.")
@click.option("--batch-size", type=int, help="Default: depends on the base; published: 64.")
@click.option("--learning-rate", type=float, help="Default: depends on the base; published: 3e-5.")
@click.option("--seed", type=click.IntRange(0, 2**32), default=0, show_default=True)
@click.option(
    "--notes",
    type=click.Path(path_type=Path),
    help="Markdown for the model card, e.g. the origin of the data and its licence.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing router.")
@json_option
@click.pass_context
def train_router(
    given: click.Context,
    /,
    cost: tuple[str, ...],
    profile: str,
    add_to: str | None,
    reliability: Path | None,
    notes: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Fine-tune a router: cost weights (α = 0) and reliability weights (α = 1), from one base.

    A killed training resumes after its last complete epoch when started again with the same
    options.
    """
    from hopgate import render
    from hopgate.classifiers.adding import add_profiles
    from hopgate.classifiers.training import train

    files = _cost_files(cost, profile)
    text = _notes(notes)
    if add_to is not None:
        _refuse_with_add_to(given)
        training = add_profiles(
            add_to, files, options["out"], notes=text, overwrite=options["overwrite"]
        )
    elif reliability is None:
        raise ValueError("give --reliability FILE, or --add-to ROUTER to add to a trained router")
    else:
        with render.stages() as advance:
            training = train(files, reliability, notes=text, advance=advance, **options)
    if as_json:
        print_json(training)
    else:
        click.echo(f'Use it: hopgate ask "…" --router {options["out"]}')


def _notes(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--notes {path} cannot be read as text: {error}") from error


def _refuse_with_add_to(given: click.Context) -> None:
    """Refuse options that apply only to training a network."""
    for name in (
        *("reliability", "base", "objective", "asked", "epochs", "batch_size", "learning_rate"),
        "seed",
    ):
        if given.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} applies to training a network; leave it out with --add-to")


def recorded_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which outcomes are replayed."""
    for option in (
        click.option(
            "--steps-multi",
            metavar="N|FILE",
            help="Steps of a multi-step answer: a number, or JSON {dataset: steps}. "
            "Default: those published for FLAN-T5-XL.",
        ),
        click.option(
            "--questions",
            type=click.Path(path_type=Path),
            help="JSONL of all questions; one without a label counts as never answered. "
            "Default: the labels' own.",
        ),
        click.option(
            "--labels",
            required=True,
            type=click.Path(path_type=Path),
            help="Recorded outcomes (JSONL: id, question, correct, label).",
        ),
        click.option("--profile", help="The LLM that the router is for. Default: its first."),
    ):
        command = option(command)
    return command


@cli.command()
@click.option(
    "--router",
    "routers",
    multiple=True,
    default=["builtin"],
    show_default=True,
    help="Folder of a router's weights; repeatable.",
)
@recorded_options
@click.option("--points", default=201, show_default=True, help="How many α, evenly from 0 to 1.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--overwrite", is_flag=True, help="Replace a sweep that is there.")
@json_option
def sweep(
    routers: tuple[str, ...],
    profile: str | None,
    labels: Path,
    questions: Path | None,
    steps_multi: str | None,
    points: int,
    out: Path,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Replay routers on recorded outcomes for every α: accuracy against steps.

    Writes sweep.json and sweep.png into the folder --out.
    """
    from hopgate import render, sweeping

    recorded = sweeping.Recorded(labels, questions, steps_multi)
    with render.progress("routing") as advance:
        document = sweeping.sweep(routers, profile, recorded, points, out, overwrite, advance)
    if as_json:
        print_json(document)
    else:
        render.swept(document, out)


FOR_ALPHA = (
    "router", "profile", "questions", "steps_multi", "budget_steps", "min_accuracy", "save"
)  # fmt: skip
FOR_GATE = (
    "model", "layout", "demos", "min_recall", "out", "concurrency", "today", "overwrite"
)  # fmt: skip
LAID = ("layout", "demos")


@cli.command()
@router_option
@recorded_options
@click.option("--budget-steps", type=float, help="Most mean steps; the best α within is chosen.")
@click.option("--min-accuracy", type=float, help="Least accuracy; the cheapest α is chosen.")
@click.option("--save", metavar="NAME", help="Keep it with the router, for `--alpha NAME`.")
@click.option(
    "--gate",
    type=click.Choice(["confidence", "draft"]),
    help="Choose this gate's threshold, not α. Then --labels has rows with question and: answer "
    "(Yes or No), correct (see `label`), or a prediction (see `eval`).",
)
@model_option
@layout_option
@demos_option
@click.option(
    "--min-recall",
    type=float,
    help="--gate: least share of the questions that need retrieval which get it, as cheap as can "
    "be. Default: the best balanced accuracy.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="--gate: folder for the curve, a picture, and the answers, so that it can be resumed.",
)
@asking_options
@json_option
@click.pass_context
def calibrate(
    context: click.Context, /, gate: str | None, labels: Path, as_json: bool, **options: Any
) -> None:
    """Choose the α that meets a goal on recorded outcomes, or a gate's threshold.

    Without --gate: a step budget or an accuracy floor gives α. With it, the model is asked, and
    the threshold that separates the questions that need retrieval is found.
    """
    given = {
        name: options[name]
        for name in options
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    foreign = [name for name in (FOR_ALPHA if gate else FOR_GATE) if name in given]
    if foreign:
        option = "--" + foreign[0].replace("_", "-")
        raise click.UsageError(f"{option} does not go {'with' if gate else 'without'} --gate")
    if gate:
        _calibrate_gate(gate, labels, as_json, given, options)
    else:
        _calibrate_alpha(labels, as_json, **{name: options[name] for name in FOR_ALPHA})


def _calibrate_alpha(
    labels: Path,
    as_json: bool,
    router: str,
    profile: str | None,
    questions: Path | None,
    steps_multi: str | None,
    budget_steps: float | None,
    min_accuracy: float | None,
    save: str | None,
) -> None:
    from hopgate import render, sweeping
    from hopgate.evaluation.calibration import Goal

    goal = Goal(budget_steps, min_accuracy)
    recorded = sweeping.Recorded(labels, questions, steps_multi)
    with render.progress("routing") as advance:
        found = sweeping.calibrate(router, profile, recorded, goal, save, advance)
    if as_json:
        print_json(found)
    else:
        render.calibrated(found)


def _calibrate_gate(
    gate: str, labels: Path, as_json: bool, given: dict[str, Any], options: dict[str, Any]
) -> None:
    from hopgate import evaluating, render

    settings: dict[str, Any] = {name: given[name] for name in LAID if name in given}
    with render.stages() as advance:
        found = evaluating.calibrate(
            labels,
            {"gate": gate} | settings,
            cli_eval.asking(advance=advance, **{name: options[name] for name in cli_eval.ASKING}),
            min_recall=options["min_recall"],
            out=options["out"],
        )
    found["use"] = _usage(found, given)
    if as_json:
        print_json(found)
    else:
        render.gate_calibrated(found, options["out"])


def _usage(found: dict[str, Any], given: dict[str, Any]) -> str:
    """The command that uses a threshold, with the settings that it was found with."""
    import shlex

    named = [
        part
        for name in ("model", *LAID)
        if name in given
        for part in (f"--{name}", str(given[name]))
    ]
    threshold = ["--gate", found["gate"], "--gate-threshold", str(found["threshold"])]
    return 'hopgate ask "…" ' + shlex.join([*threshold, *named])


@cli.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is installed and usable, what is missing, and how to get it."""
    from hopgate import diagnosis, render

    with render.status("checking", quiet=as_json):
        checks = diagnosis.run()
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        render.checks(checks)
    if any(check.needed and not check.ok for check in checks):
        raise SystemExit(1)


def _cost_files(given: tuple[str, ...], profile: str) -> dict[str, list[Path]]:
    """Sort `[PROFILE=]FILE` by profile; a file whose own name has a `=` is taken as it is."""
    files: dict[str, list[Path]] = {}
    for each in given:
        name, equals, path = each.partition("=")
        named = equals and not Path(each).exists()
        files.setdefault(name if named else profile, []).append(Path(path if named else each))
    return files


def _context(**settings: Any) -> "Context":
    """Validate a request's settings before anything heavy is imported."""
    from hopgate.nodes.context import Context

    if isinstance(name := settings.get("alpha"), str):
        from hopgate.sweeping import named_alpha

        used = (settings["router"], settings["profile"], settings.get("model", "auto"))
        settings["alpha"] = named_alpha(name, *used)
    return Context(**settings)


cli.add_command(cli_eval.eval_group)


def main() -> None:
    """Run the command line under the module's rules."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    arguments = [each for each in sys.argv[1:] if each != "--debug"]
    debug = len(arguments) < len(sys.argv[1:])
    if not debug:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        return cli.main(arguments, prog_name="hopgate", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        return _fail(f"{error.ctx.command_path}: name a command: {_commands(error.ctx)}", 2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "hopgate"
        message = error.format_message().rstrip(".")
        return _fail(f"{command}: {message}. See `{command} --help`.", 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 1)
    except Exception as error:
        if debug:
            raise
        return _fail(*explain_error(error))


def _commands(context: click.Context) -> str:
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return f"{', '.join(names)}. See `{context.command_path} --help`."


def explain_error(error: Exception) -> tuple[str, int]:
    """Put an error into one line, with the exit code that it deserves."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        from hopgate.nodes.context import explain

        return explain(error), 2
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ValueError):
        return text, 2
    if isinstance(error, RuntimeError):
        return text, 1
    return f"{type(error).__name__}: {text}; run again with --debug for the traceback", 1


def _fail(message: str, code: int) -> int:
    click.echo(f"hopgate: {message}".replace("hopgate: hopgate", "hopgate"), err=True)
    return code
