"""The resumable runner behind every command that asks a model many questions.

A run is one way to answer the questions: a context and a journal. Every finished answer is saved
to the journal at once, so the same command resumes where an interrupted one stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from hopgate.common.files import json_bytes, sha256
from hopgate.evaluation.measuring.journal import Journal, stored_settings
from hopgate.evaluation.measuring.specs import Variant
from hopgate.nodes.run.context import FIXED, Context

Row = Mapping[str, Any]
Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
"""Called with a stage, how many of its questions are done, and how many there are."""


class Subject(Protocol):
    """The graph, or a part of it."""

    async def check(self, context: Context) -> None:
        """Raise ValueError if a run would fail later for something that the context names."""

    async def load(self, context: Context) -> None:
        """Load what a run needs, before its first question."""

    async def ask(self, item: Any, context: Context) -> Row:
        """Ask about one item; the row has the item's `id`."""


@dataclass(frozen=True)
class Job:
    """The options of a command besides its questions.

    Attributes:
        settings: Fields of `Context` that differ from their defaults, for all runs.
        concurrency: Maximum number of concurrent questions.
        overwrite: Discard saved answers and ask everything again.
        command: The command line, for reports.
        progress: Shows progress.
    """

    settings: Mapping[str, Any]
    concurrency: int
    overwrite: bool
    command: str
    progress: Progress

    @property
    def model(self) -> str:
        """The full name of the model.

        Raises:
            ValueError: The model is unknown.
        """
        from hopgate.models import chat

        return chat.resolve(self.settings.get("model", "auto"))


@dataclass(frozen=True)
class Run:
    """One way to answer the questions, and where the answers are saved.

    Attributes:
        name: Shown to people.
        context: The context of every question.
        settings: Everything that the answers depend on, for the journal.
        shown: Those settings that are the run's own, for a report.
        path: The journal.
    """

    name: str
    context: Context
    settings: dict[str, Any]
    shown: dict[str, Any]
    path: Path


def make_run(variant: Variant, path: Path, job: Job, data: Mapping[str, Any]) -> Run:
    """Validate a run's settings, before anything is asked or overwritten.

    A resumed run keeps the date on which it started.

    Args:
        variant: The run's name, and its own fields of `Context`, which override the job's.
        path: The journal.
        job: The command's options.
        data: Identities of the questions and the passages, which the answers depend on too.

    Raises:
        ValueError: A setting is invalid, or the model is unknown.
    """
    from hopgate.classifiers.checkpoint import MANIFEST, router_folder
    from hopgate.classifiers.profiles import chosen_profile

    given = {**job.settings, **variant.settings, "model": job.model}
    if not given.get("today"):
        before = None if job.overwrite else stored_settings(path)
        given["today"] = (before or {}).get("today") or date.today()
    context = Context(**given)
    shown = {name: each for name, each in given.items() if name not in ("model", "index", "today")}
    if context.demos != FIXED:
        shown["demos"] = _identity(context.demos, Path(context.demos))
    if "router" in shown or "profile" in shown:
        shown["router"] = _identity(context.router, router_folder(context.router) / MANIFEST)
        shown["profile"] = chosen_profile(context.router, context.profile, context.model)
    if variant.dated:
        shown = {"today": str(context.today), **shown}
    recorded = {"hopgate": version("hopgate"), **model_settings(job.model), **data, **shown}
    return Run(variant.name, context, recorded, shown, path)


def make_runs(
    variants: Sequence[Variant], folder: Path, job: Job, data: Mapping[str, Any]
) -> list[Run]:
    """Return a run for each variant, with its journal in `folder`; see `make_run`."""
    return [make_run(each, folder / f"{each.slug}.jsonl", job, data) for each in variants]


def _identity(name: str, content: Path) -> str:
    """Return how journals and reports name a file: by its content."""
    return f"{Path(name).name}, SHA-256 {sha256(content)}"


def execute(
    runs: Sequence[Run],
    items: Mapping[str, Any],
    subject: Subject,
    job: Job,
    saved_in: Path | None,
) -> list[list[Any]]:
    """Ask the questions that the journals lack, one run after the other.

    Args:
        runs: The runs.
        items: The questions, by id.
        subject: Answers the questions.
        job: The command's options.
        saved_in: Where the journals stay, for the error message; None if they do not.

    Returns:
        For each run, its rows in the order of `items`.

    Raises:
        ValueError: A journal was written with other settings.
        RuntimeError: The work failed; the message says where answers are saved.
        KeyboardInterrupt: It was interrupted, with the same message.
    """

    async def check() -> None:
        for run in runs:
            await subject.check(run.context)

    async def ask() -> None:
        for run, journal in zip(runs, journals, strict=True):
            await _ask_one(run, journal, items, subject, job)

    asyncio.run(check())
    with ExitStack() as stack:
        journals = [
            stack.enter_context(Journal(run.path, run.settings, job.overwrite)) for run in runs
        ]
        try:
            asyncio.run(ask())
        except (RuntimeError, KeyboardInterrupt) as error:
            if saved_in is None:
                raise
            done = sum(each in journal.done for journal in journals for each in items)
            interrupted = isinstance(error, KeyboardInterrupt)
            raise (KeyboardInterrupt if interrupted else RuntimeError)(
                f"{str(error) or 'interrupted'}; {done} of {len(runs) * len(items)} answers are "
                f"saved in {saved_in}; run the same command again to resume"
            ) from error
        return [[journal.done[each] for each in items] for journal in journals]


async def _ask_one(
    run: Run, journal: Journal, items: Mapping[str, Any], subject: Subject, job: Job
) -> None:
    waiting = [item for each, item in items.items() if each not in journal.done]
    done = len(items) - len(waiting)

    def save(row: Row) -> None:
        nonlocal done
        journal.append(row)
        done += 1
        job.progress(run.name, done, len(items))

    job.progress(run.name, done, len(items))
    if waiting:
        await subject.load(run.context)
    await for_each(waiting, lambda item: subject.ask(item, run.context), job.concurrency, save)


async def for_each(
    items: Iterable[Item],
    act: Callable[[Item], Awaitable[Result]],
    concurrency: int,
    on_done: Callable[[Result], None],
) -> None:
    """Act on every item, `concurrency` at a time.

    After the first error nothing new is started; running work is finished and passed on, since it
    is paid for. Cancelling (Ctrl-C) abandons running work.

    Args:
        items: Taken as places become free.
        act: Acts on one item.
        concurrency: Maximum number at a time, at least 1.
        on_done: Called with each result as it arrives.

    Raises:
        Exception: The first error of `act` or `on_done`, once nothing runs any more.
    """
    waiting = iter(items)
    errors: list[Exception] = []

    async def work() -> None:
        for item in waiting:
            if errors:
                return
            try:
                on_done(await act(item))
            except Exception as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    if errors:
        raise errors[0]


def endpoint(model: str) -> str | None:
    """Return host and port of a model's server, without credentials; None: the embedded one."""
    from hopgate.models import chat

    if model == chat.LOCAL:
        return None
    return urlsplit(chat.base_url() or chat.OPENAI).netloc.rpartition("@")[2]


def model_settings(model: str) -> dict[str, str]:
    """Return how journals identify a model: two servers may use one name for different models."""
    server = endpoint(model)
    return {"model": model, **({"endpoint": server} if server else {})}


def index_identity(index: Path) -> str:
    """Return an index's name with a hash of its content."""
    from hopgate.retrievers.index.manifest import info
    from hopgate.retrievers.stores.collection import store_identity
    from hopgate.retrievers.stores.names import is_store

    if is_store(index):
        return store_identity(index)
    files = info(index)["files"]
    return f"index {index.name}, SHA-256 {hashlib.sha256(json_bytes(files)).hexdigest()}"
