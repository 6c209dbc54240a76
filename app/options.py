"""Options that commands share; those of a request come from the fields of `Context`."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import asdict, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import click

from hopgate.terminal import harmless_json

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from hopgate import Context
    from hopgate.common.workers import Workers
    from hopgate.evaluation.labelling import Judge, Judging
    from hopgate.evaluation.runner import Job, Progress

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


class _File(click.Path):
    """The path of a file or folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty path, which would mean the current folder."""
        if not str(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


FILE = _File(path_type=Path)
ANSWERING = (
    "model", "layout", "mode", "where", "rerank", "top_k", "max_evidence_tokens", "hop_k",
    "max_hops", "max_passages", "passage_chars", "multihop", "max_sub_questions", "max_seconds",
    "max_calls", "max_retrievals", "max_total_tokens", "answers", "max_answer_tokens",
)  # fmt: skip
"""Fields of `Context` that an answer depends on once the strategy is chosen."""
INDEX_HELP = {
    "index": "Folder of an index, or a store; sample: the built-in collection.",
    "answers": "full: as for people; short: as the papers do, the bare answer in at most 100 "
    "tokens. auto: short.",
}
"""For commands that record which index they used, and measure."""

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout."
)
out_folder_option = click.option("--out", required=True, type=FILE, help="Folder to write to.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), help="Use only the first N questions."
)
skip_bad_option = click.option(
    "--skip-bad-rows", is_flag=True, help="Leave out rows that cannot be used."
)


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of commands that ask a model many questions."""
    return combined(
        click.option(
            "--concurrency",
            type=click.IntRange(1, 256),
            default=4,
            show_default=True,
            help="Maximum number of concurrent questions.",
        ),
        workers_options,
        click.option("--overwrite", is_flag=True, help="Discard saved answers and start again."),
    )(command)


def judge_options(default: "Judge") -> Decorator:
    """Return what adds the options that say which answers are correct, see `make_judging`."""
    return combined(
        click.option(
            "--judge",
            type=click.Choice(["em", "match", "silver"]),
            default=default,
            show_default=True,
            help="Correct answers: those that equal an accepted one, contain one (match), or agree "
            "with the best-supported one (silver), which needs no accepted answers.",
        ),
        click.option(
            "--min-confidence",
            type=click.FloatRange(0, 1),
            help="silver: leave out rows of less confidence. Default: 0.3.",
        ),
        click.option(
            "--judge-model", help="silver: a model that is asked which answers are right."
        ),
    )


def make_judging(
    judge: "Judge", min_confidence: float | None, judge_model: str | None
) -> "Judging":
    """Return what the options of `judge_options` ask for.

    Raises:
        UsageError: An option that only applies to `silver` was given without it.
    """
    from hopgate.evaluation.labelling import Judging
    from hopgate.evaluation.silver import MIN_CONFIDENCE

    for name, value in (("--min-confidence", min_confidence), ("--judge-model", judge_model)):
        if value is not None and judge != "silver":
            raise click.UsageError(f"{name} applies to --judge silver; leave it out.")
    least = MIN_CONFIDENCE if min_confidence is None else min_confidence
    return Judging(judge, least, judge_model)


def workers_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for work in other processes, see `hired`."""
    return combined(
        click.option(
            "--workers",
            type=click.IntRange(1, 256),
            help="Processes to share the work on this machine. Default: only this one.",
        ),
        click.option(
            "--ray",
            metavar="ADDRESS",
            help="Share the work on a Ray cluster: auto, or HOST:PORT of its head. Needs the extra "
            "ray.",
        ),
    )(command)


@contextmanager
def hired(workers: int | None, ray: str | None) -> "Iterator[Workers | None]":
    """Yield the workers of `--workers` or `--ray`; None without either.

    Raises:
        UsageError: Both were given.
        RuntimeError: The cluster cannot be used.
    """
    if workers and ray:
        raise click.UsageError("give --workers or --ray, not both")
    if not (workers or ray):
        yield None
        return
    from hopgate.common.ray_workers import RayWorkers
    from hopgate.common.workers import LocalWorkers

    found: Workers = RayWorkers(ray) if ray else LocalWorkers(workers or 1)
    with closing(found), redirect_stdout(sys.stderr):  # Ray prints the loss of a node there
        yield found


def combined(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options, shown in this order."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class ContextCommand(click.Command):
    """A command with an option for each of some fields of `Context`.

    The callback gets `settings`, the values that differ from the defaults of `Context`. The
    options are built when the command runs or shows its help, so that other commands do not load
    pydantic.
    """

    def __init__(
        self,
        *arguments: Any,
        fields: Sequence[str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        helps: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Create the command.

        Args:
            arguments: As for `click.Command`.
            fields: Names of fields; None: all.
            defaults: Defaults of the options that differ from those of the fields.
            helps: Help of the options that differs from the fields' description.
            more: As for `click.Command`.
        """
        super().__init__(*arguments, **more)
        self._names, self._option_defaults, self._helps = fields, defaults or {}, helps or {}

    @cached_property
    def _fields(self) -> dict[str, "FieldInfo"]:
        from hopgate import Context

        fields: dict[str, FieldInfo] = Context.__pydantic_fields__  # type: ignore[attr-defined]
        return {name: fields[name] for name in self._names or fields}

    @cached_property
    def _options(self) -> list[click.Option]:
        return [
            _option(
                name,
                field,
                self._option_defaults.get(name, field.default),
                self._helps.get(name, field.description or ""),
            )
            for name, field in self._fields.items()
        ]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters and the options of the fields."""
        own = super().get_params(ctx)
        count = len(self.params)  # then comes --help
        return [*own[:count], *self._options, *own[count:]]

    def invoke(self, ctx: click.Context) -> Any:
        """Call the callback with the values of the fields as `settings`."""
        values = {name: ctx.params.pop(name) for name in self._fields}
        ctx.params["settings"] = {
            name: value for name, value in values.items() if value != self._fields[name].default
        }
        return super().invoke(ctx)


def _option(name: str, field: "FieldInfo", default: Any, help_text: str) -> click.Option:
    flag = name.replace("_", "-")
    more: dict[str, Any] = {"type": _click_type(field.annotation)}
    if name == "alpha":
        more = {"type": _number_or_name, "metavar": "NUMBER|NAME"}
        help_text += " Or a name that `calibrate --save` saved."
    elif name == "stop":
        more = {"multiple": True, "metavar": "TEXT"}
    elif name == "today":
        more["metavar"] = "YYYY-MM-DD"
    elif name == "where":
        more = {"multiple": True, "metavar": "FIELD=VALUE", "callback": _where}
        help_text = (
            "Search only passages with this id, title, source, page or section, such as "
            "source=handbook/*.md. Repeatable: all fields must match, and one value of each."
        )
    return click.Option(
        [f"--{flag}/--no-{flag}" if field.annotation is bool else f"--{flag}"],
        default=default,
        show_default=default not in (None, "", ()),
        help=help_text + _shown_range(field),
        **more,
    )


def _click_type(annotation: Any) -> Any:
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return click.Choice(inner)
    if get_origin(annotation) is Annotated:
        return _click_type(inner[0])
    if NoneType in inner:
        return _click_type(next(each for each in inner if each is not NoneType))
    return {bool: click.BOOL, float: click.FLOAT, int: click.INT}.get(annotation, click.STRING)


def _shown_range(field: "FieldInfo") -> str:
    limits = {
        name: getattr(each, name)
        for each in field.metadata
        for name in ("ge", "gt", "le")
        if hasattr(each, name)
    }
    if "le" not in limits:
        return ""
    low = f"above {limits['gt']:,}, up" if "gt" in limits else f"{limits['ge']:,}"
    return f"  [{low} to {limits['le']:,}]"


def _where(_: click.Context, option: click.Parameter, pairs: tuple[str, ...]) -> Any:
    """Read FIELD=VALUE pairs; several values of one field become a list."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(
                f"{pair!r} has no '='; give FIELD=VALUE, such as source=ferry.md", param=option
            )
        found.setdefault(name, []).append(value)
    return found or option.default


def _number_or_name(value: str | float) -> float | str:
    try:
        return float(value)
    except ValueError:
        return str(value)


def request_context(settings: Mapping[str, Any]) -> "Context":
    """Validate the settings of a request; `alpha` may be the name of a saved setting.

    Raises:
        ValueError: A setting is invalid, or no setting of that name fits the router.
    """
    from hopgate import Context

    alpha = settings.get("alpha")
    if not isinstance(alpha, str):
        return Context(**settings)
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.classifiers.saved_alphas import saved_alpha
    from hopgate.models import chat

    context = Context(**{name: value for name, value in settings.items() if name != "alpha"})
    profile = chosen_profile(context.router, context.profile, chat.resolve(context.model))
    return replace(context, alpha=saved_alpha(context.router, alpha, profile))


def deciding_alpha(context: "Context") -> float:
    """Return the α of a request: its own, or the profile's."""
    from hopgate.models import chat
    from hopgate.nodes.named import default_alpha

    if context.alpha is not None:
        return context.alpha
    return default_alpha(context, chat.resolve(context.model))


def make_job(
    settings: Mapping[str, Any],
    concurrency: int,
    overwrite: bool,
    progress: "Progress",
    workers: "Workers | None",
) -> "Job":
    """Return what the runner needs to know of a command line."""
    from hopgate.evaluation.runner import Job

    command = shlex.join(["hopgate", *sys.argv[1:]])
    return Job(settings, concurrency, overwrite, command, progress, workers)


def output(result: Any, as_json: bool, show: Callable[..., None], *arguments: Any) -> None:
    """Print a command's result as JSON, or show it to people.

    Args:
        result: JSON values, a dataclass, or a list of named tuples.
        as_json: Whether --json was given.
        show: Shows the result; gets it and `arguments`.
        arguments: More for `show`.
    """
    if not as_json:
        show(result, *arguments)
    elif is_dataclass(result) and not isinstance(result, type):
        print_json(asdict(result))
    else:
        print_json(_plain(result))


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [each._asdict() if hasattr(each, "_asdict") else each for each in result]
    return result


def print_json(document: Any) -> None:
    """Print a document on one line of stdout, readable but for control characters."""
    click.echo(harmless_json(json.dumps(document, ensure_ascii=False)))
