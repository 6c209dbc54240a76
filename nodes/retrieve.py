"""Retrieve: one search, and the evidence it adds."""

import asyncio
import logging
from collections.abc import Sequence

from hopgate.retrievers.base import Hit, Retriever

log = logging.getLogger(__name__)


class RetrievalFailed(RuntimeError):
    """The retriever broke while searching; the answer has to do without."""


async def search(retriever: Retriever, query: str, k: int) -> list[Hit]:
    """Find the `k` best passages for one query, off the event loop.

    Returns:
        Hits of plain Python types, whatever the retriever's own are (numpy scalars could not
        be checkpointed).

    Raises:
        RetrievalFailed: The retriever raised; the message names the cause.
    """
    try:
        (hits,) = await asyncio.to_thread(retriever.search, [query], k)
        return [_plain(hit) for hit in hits[:k]]
    except Exception as error:
        log.warning("retrieval failed for a query of %d characters", len(query), exc_info=error)
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        raise RetrievalFailed(f"the retriever failed: {cause}") from error


def _plain(hit: Hit) -> Hit:
    """Copy a hit into plain types, leaving out what no citation shows."""
    plain = Hit(
        id=_storable(hit["id"]),
        title=_storable(hit["title"]),
        text=_storable(hit["text"]),
        score=float(hit["score"]),
    )
    if source := hit.get("source"):
        plain["source"] = _storable(source)
    if section := hit.get("section"):
        plain["section"] = _storable(section)
    if (page := hit.get("page")) is not None:
        plain["page"] = int(page)
    return plain


def _storable(value: object) -> str:
    """Return a text without lone surrogates, which could be neither sent nor stored."""
    return str(value).encode("utf-8", "replace").decode()


def fresh(evidence: Sequence[Hit], hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits that are new, by id and by title and text.

    Args:
        evidence: What earlier hops found.
        hits: What this hop found, best first.
    """
    seen = {hit["id"] for hit in evidence} | {(hit["title"], hit["text"]) for hit in evidence}
    new: list[Hit] = []
    for hit in hits:
        if hit["id"] not in seen and (hit["title"], hit["text"]) not in seen:
            new.append(hit)
            seen |= {hit["id"], (hit["title"], hit["text"])}
    return new
