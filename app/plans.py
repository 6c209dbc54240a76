"""Many questions asked of a model, each answer kept on disk as it comes.

A plan is one way to ask them. When the same command is given again, it goes on where it was.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from hopgate.evaluation.writing import json_bytes

if TYPE_CHECKING:
    from hopgate.evaluation.journal import Journal
    from hopgate.nodes.context import Context
    from hopgate.nodes.runtime import Resources

Row = Mapping[str, Any]
Act = Callable[[Any, "Context"], Awaitable[Row]]


class Asking(NamedTuple):
    """How a model is asked.

    Attributes:
        model: Its name, or `auto`.
        concurrency: Most questions at a time.
        today: The date that prompts name; None: that of the day on which a plan's run began.
        overwrite: Ask everything again.
        command: As typed, for reports.
        advance: Called with a plan's name, how many of its questions are done, and how many there
            are.
    """

    model: str
    concurrency: int
    today: date | None
    overwrite: bool
    command: str
    advance: Callable[[str, int, int], None]


class Plan(NamedTuple):
    """One way to ask: with what, and where the answers are kept.

    Attributes:
        name: For people.
        context: Of every question.
        settings: All that the answers depend on.
        shown: Those of them that are the plan's own, for a report.
        path: Of the journal.
    """

    name: str
    context: "Context"
    settings: dict[str, Any]
    shown: dict[str, Any]
    path: Path


def make_plan(
    name: str,
    path: Path,
    given: Mapping[str, Any],
    asking: Asking,
    fixed: Mapping[str, Any],
    *,
    own: Mapping[str, Any],
    dated: bool,
) -> Plan:
    """Validates a plan's settings, before anything is asked or overwritten.

    Args:
        name: For people.
        path: Of the journal.
        given: Fields of the context.
        asking: How the model is asked.
        fixed: What else the answers depend on: the data, the passages.
        own: The plan's own settings as they are written down, files by their content.
        dated: Whether a prompt says which day it is.

    Raises:
        ValueError: If a setting is not valid, or the model is not known.
    """
    from hopgate.evaluation.journal import stored_settings
    from hopgate.models import chat
    from hopgate.nodes.context import Context

    model = chat.resolve(asking.model)
    before = None if asking.overwrite else stored_settings(path)
    day = asking.today.isoformat() if asking.today else None
    today = {"today": day or (before or {}).get("today") or date.today().isoformat()}
    context = Context(**{"model": model, **today, **given})
    shown = (today if dated else {}) | dict(own)
    settings = {"hopgate": version("hopgate"), **asked_of(model), **fixed, **shown}
    return Plan(name, context, settings, shown, path)


def check(plans: Sequence[Plan], resources: "Resources") -> None:
    """Refuses what the plans could not use later.

    Raises:
        ValueError: See `hopgate.nodes.runtime.Resources.check`.
    """

    async def check_all() -> None:
        for plan in plans:
            await resources.check(plan.context)

    asyncio.run(check_all())


def ask(
    plans: Sequence[Plan],
    items: Mapping[str, Any],
    act: Act,
    fields: Set[str],
    asking: Asking,
    kept: Path | None,
) -> list[list[Any]]:
    """Asks for each plan what its journal lacks, one plan after the other.

    Args:
        plans: The plans.
        items: What to ask, by id.
        act: Asks one; its row has the `id`.
        fields: Of such a row.
        asking: How.
        kept: Where the journals stay, for the message; None: they do not.

    Returns:
        For each plan, its rows in the order of `items`.

    Raises:
        ValueError: If what is there was made with other settings.
        RuntimeError: If the model fails; the message says what is kept, and where.
    """
    from hopgate.evaluation.journal import Journal

    with ExitStack() as stack:
        journals = [
            stack.enter_context(Journal(plan.path, plan.settings, asking.overwrite, fields))
            for plan in plans
        ]

        def done() -> int:
            return sum(each in journal.done for journal in journals for each in items)

        with going_on(done, len(plans) * len(items), kept):
            asyncio.run(_ask_all(plans, journals, items, act, asking))
        return [[journal.done[each] for each in items] for journal in journals]


@contextmanager
def going_on(done: Callable[[], int], total: int, kept: Path | None) -> Iterator[None]:
    """Says, of work that is broken off, what is kept.

    Args:
        done: Tells how many answers there are.
        total: How many there should be.
        kept: Where they are; None: nowhere.

    Raises:
        RuntimeError: If the work failed or was interrupted.
    """
    try:
        yield
    except (RuntimeError, KeyboardInterrupt) as error:
        if kept is None:
            raise
        raise RuntimeError(
            f"{str(error) or 'interrupted'}; {done()} of {total} answers are kept in {kept}, and "
            "the same command goes on from there"
        ) from error


async def _ask_all(
    plans: Sequence[Plan],
    journals: Sequence["Journal"],
    items: Mapping[str, Any],
    act: Act,
    asking: Asking,
) -> None:
    for plan, journal in zip(plans, journals, strict=True):
        await _ask_one(plan, journal, items, act, asking)


async def _ask_one(
    plan: Plan, journal: "Journal", items: Mapping[str, Any], act: Act, asking: Asking
) -> None:
    from hopgate.evaluation.running import run

    waiting = [item for each, item in items.items() if each not in journal.done]
    done = len(items) - len(waiting)

    def keep(row: Row) -> None:
        nonlocal done
        journal.append(row)
        done += 1
        asking.advance(plan.name, done, len(items))

    asking.advance(plan.name, done, len(items))
    await run(waiting, lambda item: act(item, plan.context), asking.concurrency, keep)


def endpoint(model: str) -> str | None:
    """Host and port of a model's server, which hold no secret; None: the embedded one."""
    from hopgate.models import chat

    if model == chat.LOCAL:
        return None
    return urlsplit(chat.base_url() or chat.OPENAI).netloc.rpartition("@")[2]


def asked_of(model: str) -> dict[str, str]:
    """A model as settings name it: two servers may give one name to different models."""
    server = endpoint(model)
    return {"model": model, **({"endpoint": server} if server else {})}


def searched(index: Path) -> str:
    """An index by its name and content."""
    from hopgate.retrievers.manifest import info

    files = info(index)["files"]
    return f"index {index.name}, SHA-256 {hashlib.sha256(json_bytes(files)).hexdigest()}"


def digest(file: Path) -> str:
    """SHA-256 of a file.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; name a file") from error
