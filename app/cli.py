"""The command line.

Rules for every command:

`--json` prints one JSON document on stdout and nothing else there; progress goes to
stderr. Exit code 0 done, 2 wrong usage or input, 130 interrupted (Ctrl-C), 1 anything else;
errors are one line, without a traceback unless `--debug` is given. Control characters are shown,
not sent to the terminal (`terminal.guarded`).
"""

import io
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hopgate import cli_eval, cli_harvest, cli_improve, cli_index
from hopgate.common.ending import end_process
from hopgate.common.errors import reason
from hopgate.options import (
    ANSWERING,
    FILE,
    INDEX_HELP,
    ContextCommand,
    combined,
    deciding_alpha,
    hired,
    job_options,
    json_option,
    judge_options,
    limit_option,
    make_job,
    make_judging,
    out_folder_option,
    output,
    print_json,
    request_context,
    skip_bad_option,
)
from hopgate.terminal import guarded, harmless

if TYPE_CHECKING:
    from hopgate.evaluation.labelling import Judge
    from hopgate.nodes.state import Usage


INTERRUPTED = 130  # 128 + SIGINT, as shells report it


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="hopgate")
@click.option("--debug", is_flag=True, help="Show tracebacks and logs; allowed anywhere.")
def cli(debug: bool) -> None:
    """Adaptive retrieval: decide whether to retrieve, how deep, and show why."""


@cli.command(cls=ContextCommand)
@click.argument("question")
@click.option("--thread", help="Keep a conversation under this id; follow-ups then work.")
@click.option(
    "--stream",
    is_flag=True,
    help="Print each event as a JSON line on stdout as it happens; the last is the result.",
)
@json_option
def ask(
    question: str, settings: dict[str, Any], thread: str | None, stream: bool, as_json: bool
) -> None:
    """Answer QUESTION, with sources and the reason for every decision."""
    import asyncio
    from contextlib import nullcontext

    from hopgate import asking, live, render

    if stream and as_json:
        raise click.UsageError("give --stream or --json, not both")
    context = request_context(settings)
    with nullcontext(print_json) if stream else live.view(quiet=as_json) as on_event:
        result = asyncio.run(asking.ask(question, context, thread, on_event=on_event))
    document = {key: result[key] for key in asking.SHOWN}
    if stream:
        print_json({"event": "result", **document})
    elif as_json:
        print_json(document)
    else:
        render.answer(result)


@cli.command(cls=ContextCommand, fields=("alpha", "router", "profile"))
@click.argument("question", required=False)
@click.option("--input", "source", type=FILE, help="JSONL, rows: question.")
@click.option("--output", "target", type=FILE, help="JSONL to write.")
@json_option
def route(
    question: str | None,
    settings: dict[str, Any],
    source: Path | None,
    target: Path | None,
    as_json: bool,
) -> None:
    """Show the router's decision for QUESTION, or for every row of a file.

    Rows keep all their fields and gain `route`: label, probs and alpha.
    """
    from hopgate import render
    from hopgate.evaluation import routing

    context = request_context(settings)
    alpha = deciding_alpha(context)
    used = (alpha, context.router, context.profile)
    if (question is None) == (source is None) or (source is None) != (target is None):
        raise click.UsageError("give a QUESTION, or --input with --output")
    if source is not None and target is not None:
        with render.progress("routing") as advance:
            report = routing.route_file(source, target, *used, advance)
    else:
        report = routing.route_one(question or "", *used)
    output(report, as_json, render.routed)


@cli.command(cls=ContextCommand, fields=("index", "mode", "where", "rerank"))
@click.argument("query")
@click.option("-k", default=5, show_default=True, help="Maximum number of passages to show.")
@json_option
def search(query: str, settings: dict[str, Any], k: int, as_json: bool) -> None:
    """Search an index, or another source that --index names, without asking a model."""
    from hopgate import render
    from hopgate.nodes.text import check_question
    from hopgate.retrievers.sources import open_source

    context = request_context(settings)
    if not query.strip():
        raise click.UsageError("the query is empty; give some words to search for.")
    with render.status("searching", quiet=as_json):
        source = open_source(context.index, context.mode, context.rerank, context.where)
        (hits,) = source.search([check_question(query)], k)
    output(hits, as_json, render.hits)


@cli.command(cls=ContextCommand, fields=("index", *ANSWERING), helps=INDEX_HELP)
@click.option(
    "--questions",
    required=True,
    type=FILE,
    help="JSONL, rows: question, and answers (a list), ground_truth or answer; id, dataset.",
)
@click.option("--out", required=True, type=FILE, help="JSONL of labels to write.")
@judge_options("em")
@limit_option
@skip_bad_option
@job_options
@json_option
def label(
    settings: dict[str, Any],
    questions: Path,
    out: Path,
    judge: "Judge",
    min_confidence: float | None,
    judge_model: str | None,
    limit: int | None,
    skip_bad_rows: bool,
    concurrency: int,
    workers: int | None,
    ray: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Find out which strategies answer each question: no, one or several retrievals.

    Writes a row for each question, for `train-router --cost`, `sweep --labels` and `calibrate
    --labels`. If it is interrupted, the same command resumes.
    """
    from hopgate import render
    from hopgate.evaluation import labelling
    from hopgate.retrievers.sources import index_path

    judging = make_judging(judge, min_confidence, judge_model)
    index = index_path(request_context(settings).index)
    with hired(workers, ray) as hands, render.stages() as progress:
        job = make_job(settings, concurrency, overwrite, progress, hands)
        report = labelling.label(
            questions, index, out, judging, job, limit=limit, skip_bad_rows=skip_bad_rows
        )
    output(report, as_json, render.labelled)


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
    type=FILE,
    help="Labels B (single-hop) and C (multi-hop); required without --add-to.",
)
@click.option(
    "--add-to",
    metavar="ROUTER",
    help="Add your LLM to this router (builtin or a folder) without changing the rest: for labels "
    "of a few hundred questions.",
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
    help="utility: the number of questions given to the LLMs, if the cost files leave out those "
    "that no strategy answered.",
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
    type=FILE,
    help="Markdown for the model card, e.g. the data's origin and licence.",
)
@out_folder_option
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
    """Fine-tune a router's cost weights (α = 0, one for each LLM) and reliability weights (α = 1).

    If it is interrupted, the same command resumes after the last completed epoch.
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
    """Refuse options that only apply to training a network."""
    for name in (
        *("reliability", "base", "objective", "asked", "epochs", "batch_size", "learning_rate"),
        "seed",
    ):
        if given.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} applies to training a network; leave it out with --add-to")


recorded_options = combined(
    click.option(
        "--profile", help="The LLM whose outcomes the router follows. Default: its first."
    ),
    click.option(
        "--labels",
        required=True,
        type=FILE,
        help="Recorded outcomes (JSONL: id, question, correct, label).",
    ),
    click.option(
        "--questions",
        type=FILE,
        help="JSONL of all questions; one without a label counts as never answered. "
        "Default: those of the labels.",
    ),
    click.option(
        "--steps-multi",
        metavar="N|FILE",
        help="Steps of a multi-step answer: a number, or JSON {dataset: steps}. "
        "Default: those published for FLAN-T5-XL.",
    ),
)


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
@click.option(
    "--points", default=201, show_default=True, help="Number of α values, evenly from 0 to 1."
)
@out_folder_option
@click.option("--overwrite", is_flag=True, help="Replace an existing sweep.")
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
    """Replay routers on recorded outcomes at every α: accuracy against steps.

    Writes sweep.json and sweep.png into the folder --out.
    """
    from hopgate import render
    from hopgate.evaluation.sweep import run_sweep

    outcomes = (labels, questions, steps_multi)
    with render.progress("routing") as advance:
        document = run_sweep(routers, profile, outcomes, points, out, overwrite, advance)
    output(document, as_json, render.swept, out)


ALPHA_ONLY = (
    "router", "profile", "questions", "steps_multi", "budget_steps", "budget_calls",
    "budget_tokens", "min_accuracy", "save",
)  # fmt: skip
CALIBRATION_FIELDS = ("model", "layout", "demos", "gate_demos", "gate_date", "today")
GATE_ONLY = (*CALIBRATION_FIELDS, "min_recall", "out", "concurrency", "workers", "ray", "overwrite")


@cli.command(cls=ContextCommand, fields=("router", *CALIBRATION_FIELDS))
@recorded_options
@click.option(
    "--budget-steps",
    type=float,
    help="Maximum mean steps; picks the most accurate α within that budget.",
)
@click.option("--budget-calls", type=float, help="The same for model calls, without the gate's.")
@click.option("--budget-tokens", type=float, help="The same for tokens, as `label` counts them.")
@click.option(
    "--min-accuracy", type=float, help="Minimum accuracy; picks the cheapest α that reaches it."
)
@click.option("--save", metavar="NAME", help="Save α with the router, for `--alpha NAME`.")
@click.option(
    "--gate",
    type=click.Choice(["confidence", "draft"]),
    help="Choose this gate's threshold, not α. Then --labels has rows with question and: answer "
    "(Yes or No), correct (see `label`), or a prediction (see `eval`).",
)
@click.option(
    "--min-recall",
    type=float,
    help="--gate: minimum recall; picks the cheapest threshold that reaches it. Default: the best "
    "balanced accuracy.",
)
@click.option(
    "--out",
    type=FILE,
    help="--gate: folder for the curve, a picture, and the answers, so that it can resume.",
)
@job_options
@json_option
@click.pass_context
def calibrate(
    command: click.Context,
    /,
    settings: dict[str, Any],
    gate: str | None,
    labels: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the α that meets a goal on recorded outcomes, or a gate's threshold.

    Without --gate: a budget or an accuracy floor gives α. With it, the model is prompted, and
    the threshold that best separates the questions that need retrieval is chosen.
    """
    for name in ALPHA_ONLY if gate else GATE_ONLY:
        if command.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = "--" + name.replace("_", "-")
            raise click.UsageError(
                f"{option} cannot be used {'with' if gate else 'without'} --gate"
            )
    context = request_context(settings)
    if gate:
        _calibrate_gate(gate, labels, as_json, settings, options)
    else:
        own = {name: options[name] for name in ALPHA_ONLY if name in options}
        _calibrate_alpha(labels, as_json, context.router, **own)


def _calibrate_alpha(
    labels: Path,
    as_json: bool,
    router: str,
    profile: str | None,
    questions: Path | None,
    steps_multi: str | None,
    save: str | None,
    **goals: float | None,
) -> None:
    from hopgate import render
    from hopgate.evaluation import calibration

    goal = calibration.Goal(**goals)
    outcomes = (labels, questions, steps_multi)
    with render.progress("routing") as advance:
        found = calibration.calibrate(router, profile, outcomes, goal, save, advance)
    output(found, as_json, render.calibrated)


def _calibrate_gate(
    gate: str, labels: Path, as_json: bool, settings: dict[str, Any], options: dict[str, Any]
) -> None:
    from hopgate import render
    from hopgate.evaluation.gates import calibrate_gate

    chosen = hired(options["workers"], options["ray"])
    with chosen as hands, render.stages() as progress:
        job = make_job(settings, options["concurrency"], options["overwrite"], progress, hands)
        found = calibrate_gate(
            labels, gate, job, min_recall=options["min_recall"], out=options["out"]
        )
    found["use"] = _usage(found, settings)
    output(found, as_json, render.gate_calibrated, options["out"])


def _usage(found: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return the command that uses a threshold, with the settings that it was chosen for."""
    import shlex

    parts = ["--gate", found["gate"], "--gate-threshold", str(found["threshold"])]
    for name, value in settings.items():
        option = name.replace("_", "-")
        if value is False:
            parts.append(f"--no-{option}")
        elif name != "today":
            parts += [f"--{option}", str(value)]
    return 'hopgate ask "…" ' + shlex.join(parts)


@cli.command(cls=ContextCommand)
def mcp(settings: dict[str, Any]) -> None:
    """Serve the tools ask, search and route to an MCP client, over stdin and stdout.

    The client starts this command itself; the options are the settings of its questions. In a
    folder with a langgraph.json, its graph is used.
    """
    import asyncio
    from contextlib import redirect_stdout

    from hopgate.common.extras import require

    require("hopgate mcp", "mcp", "dotenv", extra="mcp")
    from hopgate.graphs.adaptive import graph
    from hopgate.server import mcp as tools
    from hopgate.server import project

    settings = _settings(settings)
    with redirect_stdout(sys.stderr):  # stdout is the client's
        graph = project.load(Path.cwd()) or graph
    if sys.stdin.isatty():
        click.echo("hopgate mcp: waiting for an MCP client on stdin; see docs/mcp.md", err=True)
    asyncio.run(tools.serve_stdio(graph, settings))


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of every request after checking them; α may be given by its name."""
    alpha = request_context(given).alpha
    return {**given, "alpha": alpha} if "alpha" in given else given


@cli.command(cls=ContextCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port; 0: a free one.",
)
@click.option(
    "--keep",
    type=FILE,
    help="SQLite file to keep every conversation and answer in, for feedback and `hopgate "
    "harvest`. Default: none is kept.",
)
def serve(settings: dict[str, Any], host: str, port: int, keep: Path | None) -> None:
    """Serve OpenAI's API at /v1, for chat clients and OpenAI's libraries, and MCP.

    In a folder with a langgraph.json, its graph is served. The other options are the settings of
    every request; a model's name may set α (hopgate-0.7).
    """
    from hopgate.server import project, serving

    def announce(line: str) -> None:
        click.echo(f"hopgate: {line}", err=True)

    serving.serve(host, port, project.load(Path.cwd()), _settings(settings), announce, keep)


@cli.command()
@click.argument("folder", type=FILE)
@json_option
def new(folder: Path, as_json: bool) -> None:
    """Write a small project of your own into FOLDER, which must be new or empty.

    It has a graph with your model, instructions and index, the files of a LangGraph server, two
    sample documents and tests.
    """
    from hopgate import project, render

    with render.status("building the index", quiet=as_json):
        created = project.create(folder)
    output(created, as_json, render.created)


@cli.command()
@click.option(
    "--questions",
    type=FILE,
    help="JSONL, rows: question. Are they like those that the router was trained on?",
)
@click.option(
    "--router",
    default="builtin",
    show_default=True,
    help="The router for --questions: a folder, or builtin.",
)
@click.option(
    "--profile",
    default="auto",
    show_default=True,
    help="Its profile. auto: the one for the configured model.",
)
@json_option
def doctor(questions: Path | None, router: str, profile: str, as_json: bool) -> None:
    """Show what is installed and usable, what is missing, and how to get it."""
    from hopgate import diagnosis, render

    with render.status("checking", quiet=as_json):
        checks = diagnosis.run(questions, router, profile)
    output(checks, as_json, render.checks)
    if any(check.needed and not check.ok for check in checks):
        raise SystemExit(1)


def _cost_files(given: tuple[str, ...], profile: str) -> dict[str, list[Path]]:
    """Group `[PROFILE=]FILE` by profile; a file whose own name contains `=` needs no profile."""
    files: dict[str, list[Path]] = {}
    for each in given:
        name, equals, path = each.partition("=")
        named = equals and not Path(each).exists()
        files.setdefault(name if named else profile, []).append(Path(path if named else each))
    return files


cli.add_command(cli_eval.eval_group)
cli.add_command(cli_index.index_group)
cli.add_command(cli_improve.improve)
cli.add_command(cli_improve.promote)
cli.add_command(cli_harvest.harvest)


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
    end_process(_run(arguments, debug))


def _run(arguments: list[str], debug: bool) -> int:
    with guarded():
        return _guarded_run(arguments, debug)


def _guarded_run(arguments: list[str], debug: bool) -> int:
    try:
        return cli.main(arguments, prog_name="hopgate", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        return _fail(f"{error.ctx.command_path}: name a command: {_commands(error.ctx)}", 2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "hopgate"
        message = error.format_message().rstrip(".")
        return _fail(f"{command}: {message}. See `{command} --help`.", 2)
    except (click.Abort, KeyboardInterrupt) as error:
        return _fail(str(error.__cause__ or error) or "interrupted", INTERRUPTED)
    except Exception as error:
        if debug:
            traceback.print_exc()
            return 1
        return _fail(*explain_error(error))


def _commands(context: click.Context) -> str:
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    return f"{', '.join(names)}. See `{context.command_path} --help`."


def explain_error(error: Exception) -> tuple[str, int]:
    """Return an error as one line, with its exit code."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        from hopgate.nodes.context import explain

        return explain(error, lambda name: f"--{name.replace('_', '-')}"), 2
    text = reason(error)
    if isinstance(error, ValueError):
        return text, 2
    if isinstance(error, RuntimeError):
        return text + _cost(error), 1
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}", 1
    return f"{type(error).__name__}: {text}; run again with --debug for the traceback", 1


def _cost(error: RuntimeError) -> str:
    """Return what a run had cost when it failed; see `hopgate.nodes.spending.spent_by`."""
    usage: Usage | None = getattr(error, "usage", None)
    if not usage or not usage["llm_calls"] + usage["retrieval_steps"]:
        return ""
    from hopgate.render import counts

    return f" (cost so far: {counts(usage)})"


def _fail(message: str, code: int) -> int:
    line = harmless(f"hopgate: {message}".replace("hopgate: hopgate", "hopgate"), lines=False)
    click.echo(line, err=True)
    return code
