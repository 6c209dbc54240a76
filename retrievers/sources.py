"""Where a request searches, by the name in its `index`, and how its hits are ranked.

A name is `sample`, the folder of an index, `web:ENGINE`, or an outside store such as
`qdrant:NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import get_args

from hopgate.retrievers import web
from hopgate.retrievers.base import Hit, Retriever
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index import Index, check_index, load_index
from hopgate.retrievers.rerank import Reranked, check_reranker, load_reranker

SAMPLE = "sample"
AUTO = "auto"
STORES = ("qdrant", "pgvector")
MODES: tuple[Mode, ...] = get_args(Mode)


def index_path(name: str) -> Path:
    """Give the folder of an index; `sample` is the one that ships with the package."""
    return Path(__file__).parent / "sample" / "index" if name == SAMPLE else Path(name)


def check_source(name: str, mode: str = AUTO, rerank: str = "") -> None:
    """Refuse what `open_source` could not open here, without loading models or asking the network.

    Raises:
        ValueError: the index, the mode or the cross-encoder is not usable, or a key or an address
            is missing from the environment.
        RuntimeError: an extra is missing.
    """
    engine = _outside(name)
    if mode not in (AUTO, *MODES):
        raise ValueError(f"mode is {mode!r}: use {', '.join((AUTO, *MODES))}")
    if engine and mode != AUTO:
        raise ValueError(f"mode is {mode!r}, and {engine} ranks in its own way: use {AUTO}")
    if engine == "web":
        _check_web(name)
    elif engine:
        from hopgate.retrievers.stores import check_store

        check_store(name)
    else:
        check_index(index_path(name))
    if rerank:
        check_reranker(rerank)


def open_source(
    name: str, mode: str = AUTO, rerank: str = "", where: Mapping[str, str] | None = None
) -> Retriever:
    """Open what a request searches; what is heavy is loaded once per process.

    Args:
        name: `sample`, the folder of an index, `web:serpapi` or `web:wikipedia`,
            `qdrant:NAME[@ENCODER]` or `pgvector:NAME[@ENCODER]`.
        mode: `dense`, `bm25` or `hybrid`, or `auto`: the best that was measured.
        rerank: a cross-encoder that orders the hits, see `load_reranker`; empty: none.
        where: field → value that hits must have, see `Index.search`.

    Raises:
        ValueError: as `check_source`, or only an index of hopgate's can be filtered.
        RuntimeError: an extra, a model or an engine is missing.
    """
    check_source(name, mode, rerank)
    engine = _outside(name)
    if engine and where:
        raise ValueError(f"where names {next(iter(where))!r}, and {engine} is not filtered here")
    if engine == "web":
        found: Retriever = _web(name)
    elif engine:
        from hopgate.retrievers.stores import open_store

        found = open_store(name)
    else:
        chosen = next((each for each in MODES if each == mode), None)
        found = InMode(load_index(index_path(name)), chosen, where)
    return Reranked(found, load_reranker(rerank)) if rerank else found


class InMode:
    """An index searched in one mode.

    Args:
        index: what is searched.
        mode: how; None: the index's default.
        where: field → value that hits must have; None: all may be found.
    """

    def __init__(
        self, index: Index, mode: Mode | None, where: Mapping[str, str] | None = None
    ) -> None:
        """Hold them."""
        self._index = index
        self._mode = mode
        self._where = where

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` passages for each query, see `Index.search`."""
        return self._index.search(queries, k, mode=self._mode, where=self._where)


def _outside(name: str) -> str:
    """Give the engine of a name such as `web:…`; empty for an index of hopgate's."""
    engine = name.partition(":")[0] if ":" in name else ""
    return engine if engine in ("web", *STORES) else ""


def _check_web(name: str) -> None:
    if name.removeprefix("web:") not in web.ENGINES:
        known = " or ".join(f"web:{each}" for each in web.ENGINES)
        raise ValueError(f"index is {name!r}: use {known}")
    if name == "web:serpapi":
        web.check_serpapi()


@cache
def _web(name: str) -> web.WebSearch:
    return web.WebSearch(web.ENGINES[name.removeprefix("web:")])
