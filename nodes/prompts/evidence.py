"""Evidence: which passages join what the loop has found, and how much of it fits the budget."""

from collections.abc import Sequence
from typing import Any, cast

from hopgate.retrievers.base import Hit
from hopgate.retrievers.langchain import flat


def plain_hit(hit: Hit) -> Hit:
    """Copy a hit into plain Python types, without empty optional fields."""
    plain: dict[str, Any] = {key: _storable(hit[key]) for key in ("id", "title", "text")}
    plain["score"] = float(hit["score"])
    plain |= {key: _storable(hit[key]) for key in ("source", "section") if hit.get(key)}
    if (page := hit.get("page")) is not None:
        plain["page"] = int(page)
    if known := hit.get("metadata"):
        plain["metadata"] = flat(known)
    return cast(Hit, plain)


def _storable(value: object) -> str:
    """Replace lone surrogates, which can be neither sent nor stored."""
    return str(value).encode("utf-8", "replace").decode()


def unseen(evidence: Sequence[Hit], hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits that are not in the evidence yet, by id and by title and text.

    Args:
        evidence: Passages from earlier hops.
        hits: Passages of this hop, best first.
    """
    seen = {hit["id"] for hit in evidence} | {(hit["title"], hit["text"]) for hit in evidence}
    new: list[Hit] = []
    for hit in hits:
        if hit["id"] not in seen and (hit["title"], hit["text"]) not in seen:
            new.append(hit)
            seen |= {hit["id"], (hit["title"], hit["text"])}
    return new


def fit_budget(
    new: Sequence[Hit], evidence: Sequence[Hit], max_passages: int, max_bytes: float
) -> list[Hit]:
    """Return the new passages that fit beside the evidence.

    A passage that is too large for the space left is skipped, unless it is the very first one:
    prompts cut that.

    Args:
        new: Passages that are not in the evidence, best first.
        evidence: Passages from earlier hops.
        max_passages: Maximum number of passages in total.
        max_bytes: Maximum size of all titles and texts in UTF-8.
    """
    fitting: list[Hit] = []
    left = max_bytes - byte_size(evidence)
    for hit in new:
        if len(fitting) + len(evidence) >= max_passages:
            break
        if byte_size([hit]) <= left or not (fitting or evidence):
            fitting.append(hit)
            left -= byte_size([hit])
    return fitting


def byte_size(hits: Sequence[Hit]) -> int:
    """Return the size of all titles and texts in UTF-8 bytes."""
    return sum(len(f"{hit['title']}{hit['text']}".encode()) for hit in hits)
