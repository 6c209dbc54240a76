"""Makes commands of functions, and the options that commands share.

A command's signature and docstring declare it: positional-only parameters are arguments, the others
options, and the texts under `Args:` their help. A dataclass as a parameter stands for the options
that are its fields.
"""

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource

from hopgate.nodes.run.context import Context
from hopgate.retrievers.filters import ENDS, FIELDS, is_date, parse_where, same
from hopgate.terminal.pages import AS_JSON
from hopgate.terminal.progress import stages

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from hopgate.evaluation.measuring.runner import Job

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


class _File(click.Path):
    """The path of a file or folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an empty path, which would mean the current folder."""
        if not str(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


TYPES: dict[Any, click.ParamType[Any]] = {
    bool: click.BOOL,
    int: click.INT,
    float: click.FLOAT,
    Path: _File(path_type=Path),
    datetime: click.DateTime(["%Y-%m-%d"]),
}


def command(
    command_name: str | None = None,
    *,
    context: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    helps: Mapping[str, str] | None = None,
    json: bool = True,
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function.

    Args:
        command_name: The command's name; None: the function's.
        context: Fields of `Context` that are options too. The function gets those that differ from
            their defaults as `settings`; of `EVERY_FIELD`, all that were given.
        defaults: Defaults of these options, where they differ from the fields'.
        helps: Help of these options, where it differs from the fields' description.
        json: Whether there is `--json`, see `hopgate.terminal.pages.output`.
    """
    known = Context.model_fields

    def make(function: Callable[..., None]) -> click.Command:
        arguments: list[str] = []
        options: list[click.Parameter] = []
        bundles: dict[str, Any] = {}
        for given in signature(function).parameters.values():
            if is_dataclass(given.annotation):
                bundle: Any = given.annotation
                bundles[given.name] = bundle
                texts = _texts(bundle)
                options += [_parameter(of, texts) for of in signature(bundle).parameters.values()]
            elif given.name != "settings":
                options.append(_parameter(given, _texts(function)))
                if given.kind == Parameter.POSITIONAL_ONLY:
                    arguments.append(given.name)
        for name in context:
            default = (defaults or {}).get(name, known[name].default)
            text = (helps or {}).get(name, known[name].description or "")
            options.append(_of_context(name, known[name], default, text))
        if json:
            text = "Print one JSON document on stdout."
            options.append(click.Option(["--json", "as_json"], is_flag=True, help=text))

        def run(**values: Any) -> None:
            click.get_current_context().meta[AS_JSON] = values.pop("as_json", False)
            for name, bundle in bundles.items():
                values[name] = bundle(**{of.name: values.pop(of.name) for of in fields(bundle)})
            if context:
                own = {name: values.pop(name) for name in context}
                source = click.get_current_context().get_parameter_source
                values["settings"] = {
                    name: value
                    for name, value in own.items()
                    if value != known[name].default
                    # A project's graph has defaults of its own.
                    or (context is EVERY_FIELD and source(name) is ParameterSource.COMMANDLINE)
                }
            positional = [values.pop(name) for name in arguments]
            function(*positional, **values)

        text, *_ = cleandoc(function.__doc__ or "").partition("\nArgs:")
        title = command_name or function.__name__
        return click.Command(title, callback=run, params=options, help=text)

    return make


def _texts(declared: Any) -> dict[str, str]:
    """Return the texts about parameters in a docstring, by their names."""
    sections = [
        cleandoc(each.__doc__ or "").partition("\nArgs:\n")[2]
        for each in getattr(declared, "__mro__", (declared,))
    ]
    _, *found = re.split(r"^    (\w+): ", "\n".join(sections), flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(found[::2], found[1::2], strict=True)
    }


def _parameter(declared: Parameter, texts: Mapping[str, str]) -> click.Parameter:
    required = declared.default is Parameter.empty
    more = {"required": required} | ({} if required else {"default": declared.default})
    more |= _typed(declared.annotation)
    if declared.kind == Parameter.POSITIONAL_ONLY:
        nargs = -1 if more.pop("multiple", False) else 1
        return click.Argument([declared.name], nargs=nargs, **more)
    return _option(declared.name, texts[declared.name], **more)


def _option(name: str, text: str, names: Sequence[str] = (), **more: Any) -> click.Option:
    flag, default = name.replace("_", "-"), more.get("default")
    if more["type"] is click.BOOL:
        more |= {"type": None, "is_flag": True}
    names = names or [f"--{flag}/--no-{flag}" if default is True else f"--{flag}"]
    shown = default not in (None, "", ()) and default is not False
    return click.Option([*names, name], help=text, show_default=shown, **more)


def _typed(hint: Any) -> dict[str, Any]:
    """Return a type's settings for click."""
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return {"type": click.Choice(inner)}
    if get_origin(hint) is Annotated:
        found = _typed(inner[0])
        for each in inner[1:]:
            if isinstance(each, click.ParamType):
                found["type"] = each
            elif isinstance(each, dict):
                found |= each
        return found
    if get_origin(hint) is tuple:
        return _typed(inner[0]) | {"multiple": True}
    if NoneType in inner:
        return _typed(next(each for each in inner if each is not NoneType))
    return {"type": TYPES.get(hint, click.STRING)}


# The fields of `Context`


def _of_context(name: str, field: "FieldInfo", default: Any, text: str) -> click.Option:
    more = {"default": default} | _typed(field.annotation) | SPECIAL.get(name, {})
    return _option(name, SPECIAL_HELP.get(name, "{}").format(text), **more)


def _where(_: click.Context, option: click.Parameter, pairs: tuple[str, ...]) -> Any:
    """Read FIELD=VALUE pairs; several values of one field become a list."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(
                f"{pair!r} has no '='; give FIELD=VALUE, such as source=ferry.md", param=option
            )
        found.setdefault(name, []).append(_range(name, value) or value)
    return found or option.default


def _range(name: str, text: str) -> dict[str, str | float] | None:
    """Read FROM..TO, of which one may be missing; None if it is a text."""
    ends = text.split("..") if name == "page" or name not in FIELDS else []
    read = [each if is_date(each) else same(each)[-1] if each else None for each in ends]
    found = {name: each for name, each in zip(ENDS, read, strict=False) if each is not None}
    try:
        parse_where({name: found})
    except ValueError:
        return None
    return found if len(ends) == 2 else None


def _number_or_name(value: str | float) -> float | str:
    try:
        return float(value)
    except ValueError:
        return str(value)


SPECIAL: dict[str, dict[str, Any]] = {
    "alpha": {"type": _number_or_name, "metavar": "NUMBER|NAME"},
    "stop": {"type": click.STRING, "multiple": True, "metavar": "TEXT"},
    "today": {"metavar": "YYYY-MM-DD"},
    "where": {
        "type": click.STRING, "multiple": True, "metavar": "FIELD=VALUE", "callback": _where,
    },
}  # fmt: skip
SPECIAL_HELP = {
    "alpha": "{} Or a name that `calibrate --save` saved.",
    "where": "Search only passages with this id, title, source, page, section or metadata, such as "
    "source=handbook/*.md, tags=hr, date=2024-01-01..2024-12-31 or size=..100. Repeatable: all "
    "fields must match, and one value of each.",
}
EVERY_FIELD = tuple(Context.model_fields)


def request_context(settings: Mapping[str, Any]) -> Context:
    """Validate the settings of a request; `alpha` may be the name of a saved setting.

    Raises:
        ValueError: A setting is invalid, or no setting of that name fits the router.
    """
    alpha = settings.get("alpha")
    if not isinstance(alpha, str):
        return Context(**settings)
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.classifiers.saved_alphas import saved_alpha
    from hopgate.models import chat

    context = Context(**{name: value for name, value in settings.items() if name != "alpha"})
    profile = chosen_profile(context.router, context.profile, chat.resolve(context.model))
    return Context(alpha=saved_alpha(context.router, alpha, profile)).over(context)


# Options that several commands have


@dataclass(frozen=True)
class Asking:
    """Asks a model many questions.

    Args:
        concurrency: Maximum number of concurrent questions.
        overwrite: Discard saved answers and start again.
    """

    concurrency: Annotated[int, click.IntRange(1, 256)] = 4
    overwrite: bool = False

    @contextmanager
    def job(self, settings: Mapping[str, Any]) -> "Iterator[Job]":
        """Yield a job with these options, and its progress on stderr."""
        from hopgate.evaluation.measuring.runner import Job

        line = shlex.join(["hopgate", *sys.argv[1:]])
        with stages() as progress:
            yield Job(settings, self.concurrency, self.overwrite, line, progress)


@dataclass(frozen=True)
class RecordedFiles:
    """Names recorded outcomes, on which a router is replayed.

    Args:
        labels: Recorded outcomes (JSONL: id, question, correct, label).
        questions: JSONL of all questions; one without a label counts as never answered. Default:
            those of the labels.
        steps_multi: Steps of a multi-step answer: a number, or JSON {dataset: steps}. Default:
            those published for FLAN-T5-XL.
        profile: The LLM whose outcomes the router follows. Default: its first.
    """

    labels: Path
    questions: Path | None = None
    steps_multi: Annotated[str | None, {"metavar": "N|FILE"}] = None
    profile: str | None = None

    @property
    def outcomes(self) -> tuple[Path, Path | None, str | None]:
        """The outcomes, as `hopgate.evaluation.measuring` takes them."""
        return self.labels, self.questions, self.steps_multi


def refuse(names: Sequence[str], why: str) -> None:
    """Refuse options that were given although they do not apply.

    Raises:
        UsageError: One of the options was given; the message is the option and `why`.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} {why}")
