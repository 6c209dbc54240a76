"""Budget: how much evidence the loop keeps, in tokens of the model in use.

The tokenizer behind an OpenAI-compatible endpoint cannot be had offline, so tokens are
estimated from UTF-8 bytes, at the rate that the endpoint's own count of the last prompt showed.
"""

from collections.abc import Sequence

from hopgate.models.chat import Completion
from hopgate.nodes.prompts import MAX_TITLE_CHARS
from hopgate.retrievers.base import Hit

# Byte-level tokenizers write no token shorter than a byte. English prose has about 4.5 bytes a
# token, so that the estimate counts it a little too high.
MIN_BYTES_PER_TOKEN = 1.0
MAX_BYTES_PER_TOKEN = 4.0
FIRST_BYTES_PER_TOKEN = 3.0  # before the loop's first call


def bytes_per_token(completion: Completion, before: float) -> float:
    """Return the rate that a call showed, `before` where the endpoint counted nothing."""
    if not completion.prompt_tokens or not completion.prompt_bytes:
        return before
    rate = completion.prompt_bytes / completion.prompt_tokens
    return min(max(rate, MIN_BYTES_PER_TOKEN), MAX_BYTES_PER_TOKEN)


def size(hits: Sequence[Hit]) -> int:
    """Return how many bytes the titles and texts have in UTF-8."""
    return sum(len(f"{hit['title']}{hit['text']}".encode()) for hit in hits)


def shortened(hit: Hit, chars: int) -> Hit:
    """Return a passage with at most `chars` characters of text and a title as prompts show it."""
    return Hit(**{**hit, "title": hit["title"][:MAX_TITLE_CHARS], "text": hit["text"][:chars]})


def keep(new: Sequence[Hit], evidence: Sequence[Hit], passages: int, room: float) -> list[Hit]:
    """Return the new passages that can join the evidence.

    A passage too large for what is left is passed over; the very first is cut to fit.

    Args:
        new: Passages that are not in the evidence, best first.
        evidence: What earlier hops found.
        passages: Most passages in all.
        room: Most bytes in all, of titles and texts in UTF-8.
    """
    kept: list[Hit] = []
    left = room - size(evidence)
    for hit in new:
        if len(kept) + len(evidence) >= passages:
            break
        if not kept and not evidence:
            hit = _cut(hit, int(min(left, size([hit]))))
        if size([hit]) <= left:
            kept.append(hit)
            left -= size([hit])
    return kept


def _cut(hit: Hit, room: int) -> Hit:
    title = _clip(hit["title"], room // 2)
    return Hit(**{**hit, "title": title, "text": _clip(hit["text"], room - len(title.encode()))})


def _clip(text: str, room: int) -> str:
    return text.encode()[:room].decode(errors="ignore")
