"""Checks and opens the index and the router that a request names, and again when they change.

Functions that are not coroutines may block, so nodes call them in a thread. Searches of one index
that arrive together run as one, and so do routings by one router.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from hopgate.classifiers.decision import RouterReply, routed
from hopgate.classifiers.profiles import chosen_profile
from hopgate.classifiers.profiles import default_alpha as profile_alpha
from hopgate.classifiers.router import Router, load_router
from hopgate.common.batching import Batcher
from hopgate.common.cache import file_stamps
from hopgate.common.errors import reason
from hopgate.common.faults import blamed, detail
from hopgate.nodes.prompts.evidence import plain_hit
from hopgate.nodes.run.context import Context
from hopgate.retrievers.base import SAMPLE, Retriever
from hopgate.retrievers.coverage import Look, look_at
from hopgate.retrievers.encoders import model_files
from hopgate.retrievers.encoding.provider import EncoderDownError
from hopgate.retrievers.filters import Filter, filtered, parse_where
from hopgate.retrievers.index.manifest import MANIFEST, info
from hopgate.retrievers.index.reader import own_encoder, while_it_changes
from hopgate.retrievers.sources import check_source, index_path, open_source
from hopgate.retrievers.stores.names import StoreError

log = logging.getLogger(__name__)

KEPT = 256  # names come from requests
RETRIEVER_FAILED = "the retriever failed"  # starts the warning about it
search_observers = list[Callable[[float, bool], None]]()
"""Called after each search with its seconds, and whether it failed."""
Value = TypeVar("Value")


class RetrievalFailed(RuntimeError):
    """The retriever raised while searching; the answer has to do without it."""

    fault = "retriever"


class Lookup(Generic[Value]):
    """Looks up a name once, and again when one of its files has changed.

    Looking up reads manifests and lists folders, which would cost every question more than all of
    its LangGraph steps. Staleness is that of `hopgate.common.cache.Cache`; errors are not kept.
    """

    def __init__(self, find: Callable[..., Value], files: Callable[..., Sequence[Path]]) -> None:
        """Keep how to look up a name, and how to list the files that the result depends on."""
        self._find = find
        self._files = files
        self._cell = lru_cache(KEPT)(lambda *name: list[Any]())

    def __call__(self, *name: str) -> Value:
        """Look up a name; raises the errors of `find` and `files`."""
        cell = self._cell(*name)
        if not cell or file_stamps(cell[1]) != cell[2]:
            files = self._files(*name)
            stamps = file_stamps(files)  # before the look, so that a change during it shows
            cell[:] = self._find(*name), files, stamps
        found: Value = cell[0]
        return found


@blamed("index")
def check_index(context: Context) -> None:
    """Check that the request's index can be searched, without opening it.

    Raises:
        ValueError: See `hopgate.retrievers.sources.check_source`.
        RuntimeError: An extra is missing.
    """
    if is_folder(context):
        _check_folder(context.index, context.mode)
    else:
        check_source(context.index, context.mode, context.rerank, context.where)


@blamed("index")
def open_index(context: Context) -> Retriever:
    """Open the request's index, all searches of which fulfil the request's filter.

    Raises:
        ValueError: See `hopgate.retrievers.sources.open_source`.
        RuntimeError: An extra or a model is missing, or an engine cannot be reached.
    """
    if is_folder(context):
        return filtered(_open_folder(context.index, context.mode), context.where)
    return open_source(context.index, context.mode, context.rerank, context.where)


@blamed("router")
def check_router(context: Context, model: str) -> None:
    """Check that the request's router can be loaded and has the profile that it needs.

    Raises:
        ValueError: See `hopgate.classifiers.profiles.chosen_profile`.
        RuntimeError: A file is missing or was altered.
    """
    _profile(context.router, context.profile, model)


@blamed("router")
def default_alpha(context: Context, model: str) -> float:
    """Return the α of a request that gives none; raises the errors of `check_router`."""
    return _alpha(context.router, context.profile, model)


async def search(context: Context, query: str, k: int, *, measured: bool = False) -> Look:
    """Search the request's index, which is a folder; see `is_folder` and `search_with`.

    Raises:
        ValueError: See `open_index`.
        RetrievalFailed: See `search_with`.
    """
    key = context.index, context.mode, parse_where(context.where), k, measured
    return await asyncio.wrap_future(_searches.submit(key, query))


def _search_all(key: tuple[str, str, Filter, int, bool], queries: Sequence[str]) -> list[Look]:
    index, mode, where, k, measured = key

    def open_in(mode: str) -> Retriever:
        return filtered(_open_folder(index, mode), where)

    return search_index(open_in, mode, queries, k, measured=measured)


def search_index(
    open_in: Callable[[str], Retriever],
    mode: str,
    queries: Sequence[str],
    k: int,
    *,
    measured: bool = False,
) -> list[Look]:
    """Search an index, by words alone while the provider of its encoder is down.

    Args:
        open_in: Opens the index in a mode.
        mode: How to search it; `dense` is not replaced.
        queries: See `search_with`, as for the others and what is raised.
        k: Maximum number of passages for each query.
        measured: Whether to measure coverage.
    """
    try:
        return search_with(partial(open_in, mode), queries, k, measured=measured)
    except RetrievalFailed as error:
        if mode == "dense" or not isinstance(error.__cause__, EncoderDownError):
            raise
        warning = f"searched by words only: {detail(error.__cause__, 300)}"
        found = search_with(partial(open_in, "bm25"), queries, k)
        return [each._replace(warning=warning) for each in found]


def search_with(
    opened: Callable[[], Retriever], queries: Sequence[str], k: int, *, measured: bool = False
) -> list[Look]:
    """Search a retriever; may block.

    Args:
        opened: Returns the retriever.
        queries: The search texts.
        k: Maximum number of passages for each query.
        measured: Whether to measure how well the collection covers each query, if the
            retriever can.

    Returns:
        For each query at most `k` hits, of plain Python types.

    Raises:
        ValueError: The index is missing or damaged.
        RetrievalFailed: The retriever raised, its store could not be reached, or it returned the
            hits of fewer or more queries.
    """
    started, failed = time.perf_counter(), False
    try:
        retriever = opened()
        if measured:
            found = look_at(retriever, queries, k)
        else:
            found = [Look(list(hits)) for hits in retriever.search(queries, k)]
        pairs = zip(queries, found, strict=True)
        return [each._replace(hits=[plain_hit(hit) for hit in each.hits[:k]]) for _, each in pairs]
    except Exception as error:
        if getattr(error, "fault", "retriever") != "retriever":
            raise
        failed = True
        sizes = ", ".join(str(len(query)) for query in queries)
        text, traced = reason(error), None if isinstance(error, StoreError) else error
        log.warning("a search of %s characters failed: %s", sizes, text, exc_info=traced)
        raise RetrievalFailed(f"{RETRIEVER_FAILED}: {detail(error, 200)}") from error
    finally:
        for each in search_observers:
            each(time.perf_counter() - started, failed)


async def route(context: Context, model: str, question: str, alpha: float) -> RouterReply:
    """Ask the request's router; raises the errors of `check_router`."""
    key = context.router, context.profile, model, alpha
    return await asyncio.wrap_future(_routings.submit(key, question))


@blamed("router")
def _route_all(key: tuple[str, str, str, float], questions: Sequence[str]) -> list[RouterReply]:
    *named, alpha = key
    return routed(_router(*named), questions, alpha)


_searches = Batcher(_search_all, lambda key: key[0])
_routings = Batcher(_route_all, lambda key: key[0])


def is_folder(context: Context) -> bool:
    """Return whether the request's index is a folder, whose files tell whether it has changed."""
    return not context.rerank and (context.index == SAMPLE or ":" not in context.index)


def _index_files(name: str, mode: str) -> list[Path]:
    folder = index_path(name).expanduser()

    def look() -> list[Path]:
        manifest = info(index_path(name))
        own = [folder / each for each in (MANIFEST, *manifest["files"])]
        return own + model_files(own_encoder(folder, manifest).folder)

    return while_it_changes(folder, look)


def _router_files(router: str, profile: str, model: str) -> list[Path]:
    from hopgate.classifiers.checkpoint import router_files

    return router_files(router)


def _load_router(router: str, profile: str, model: str) -> Router:
    return load_router(router, _profile(router, profile, model))


_check_folder = Lookup(check_source, _index_files)
_open_folder = Lookup(open_source, _index_files)
_profile = Lookup(chosen_profile, _router_files)
_alpha = Lookup(profile_alpha, _router_files)
_router = Lookup(_load_router, _router_files)
