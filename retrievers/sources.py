"""Where a request searches, by the name in its `index`, and how its hits are ranked.

A name is `sample`, the folder of an index, `web:ENGINE`, or an outside store such as
`qdrant:NAME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from hopgate.retrievers.base import SAMPLE, Hit, Retriever
from hopgate.retrievers.coverage import Look
from hopgate.retrievers.filters import Filter, Where, filtered, parse_where
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index.reader import Index, check_index, load_index
from hopgate.retrievers.stores.names import ENGINES, check_store

if TYPE_CHECKING:
    from hopgate.retrievers.stores.searching import StoreIndex

AUTO = "auto"
MODES: tuple[Mode, ...] = get_args(Mode)


def sample_path() -> Path:
    """Return the folder of the sample index that ships with the package."""
    return Path(__file__).parent / "sample" / "index"


def index_path(name: str) -> Path:
    """Return the folder of an index; `sample` is the one that ships with the package."""
    return sample_path() if name == SAMPLE else Path(name)


def check_source(
    name: str, mode: str = AUTO, rerank: str = "", where: Where | Filter | None = None
) -> None:
    """Check the arguments of `open_source` as far as possible without models and network.

    Raises:
        ValueError: The index, the mode, the cross-encoder or the filter is not usable, or the
            environment lacks a key or an address.
        RuntimeError: An extra is missing.
    """
    engine = _engine(name)
    wanted = parse_where(where)
    if mode not in (AUTO, *MODES):
        raise ValueError(f"unknown mode {mode!r}: use {', '.join((AUTO, *MODES))}")
    if engine == "web":
        from hopgate.retrievers.web import open_web

        open_web(name)
        if mode != AUTO:
            raise ValueError(f"mode {mode!r} is not available with {name}: use {AUTO}")
        if wanted:
            raise ValueError(
                f"where ({', '.join(dict(wanted))}) is not available with {name}, since a web "
                "search cannot be filtered: use an index or an outside store"
            )
    elif engine:
        check_store(name)
    else:
        check_index(index_path(name))
    if rerank:
        from hopgate.retrievers.rerank import check_reranker

        check_reranker(rerank)


def open_source(
    name: str, mode: str = AUTO, rerank: str = "", where: Where | Filter | None = None
) -> Retriever:
    """Open the source of a request's searches; everything is opened once per process.

    Args:
        name: `sample`, the folder of an index, `web:serpapi` or `web:wikipedia`,
            `milvus:NAME[@ENCODER]`, `qdrant:NAME[@ENCODER]` or `pgvector:NAME[@ENCODER]`.
        mode: `dense`, `bm25` or `hybrid`; `auto` is the index's default.
        rerank: A cross-encoder that reorders the hits, see `load_reranker`; empty for none.
        where: The filter that all hits must fulfil, see `parse_where`; not for the web.

    Raises:
        ValueError: See `check_source`.
        RuntimeError: An extra or a model is missing, or an engine cannot be reached.
    """
    wanted = parse_where(where)
    check_source(name, mode, rerank, wanted)
    engine = _engine(name)
    chosen = next((each for each in MODES if each == mode), None)
    found: Retriever
    if engine == "web":
        from hopgate.retrievers.web import open_web

        found = open_web(name)
    elif engine:
        from hopgate.retrievers.stores.searching import load_store

        found = filtered(InMode(load_store(name), chosen), wanted)
    else:
        found = filtered(InMode(load_index(index_path(name)), chosen), wanted)
    if not rerank:
        return found
    from hopgate.retrievers.rerank import Reranked, load_reranker

    return Reranked(found, load_reranker(rerank))


class InMode:
    """An index searched in one mode.

    Args:
        index: The index to search, or a store.
        mode: How to search it; None for the index's default.
    """

    def __init__(self, index: Index | StoreIndex, mode: Mode | None) -> None:
        """Keep the settings of every search."""
        self._index = index
        self._mode = mode

    def search(
        self, queries: Sequence[str], k: int, where: Where | Filter | None = None
    ) -> list[list[Hit]]:
        """Find at most `k` passages for each query, see `Index.search`."""
        return self._index.search(queries, k, mode=self._mode, where=where)

    def look(
        self, queries: Sequence[str], k: int, where: Where | Filter | None = None
    ) -> list[Look]:
        """Search, and say what the collection has to do with each query, see `Look`."""
        found = self.search(queries, k, where)
        if not (background := self._index.background):
            return [Look(hits) for hits in found]
        best = self._index.search(queries, 1, "dense", where)
        return [
            Look(hits, near[0]["score"] if near else None, background)
            for hits, near in zip(found, best, strict=True)
        ]


def _engine(name: str) -> str:
    """Return the engine of a name such as `web:…`; empty for one of hopgate's indexes."""
    engine = name.partition(":")[0] if ":" in name else ""
    return engine if engine in ("web", *ENGINES) else ""
