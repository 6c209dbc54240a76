"""From a router's probabilities to the label, and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from hopgate.common.strategies import LABELS, Label

DEFAULT_ALPHA = 0.7
"""For routers without a default of their own."""


def choose(probs: Mapping[str, float], alpha: float, doubt: str | None) -> tuple[Label, str]:
    """Return the likeliest label, or B where A cannot be right, with the reason.

    Args:
        probs: The router's probabilities of A, B and C.
        alpha: The request's α, for the reason.
        doubt: Why the router's decision cannot be trusted, or None; then B replaces A.
    """
    label = likeliest(probs)
    if label == "A" and doubt:
        return "B", f"A is the likeliest, but {doubt}"
    return label, f"{label} is the likeliest at α = {alpha:g}" + (f"; {doubt}" if doubt else "")


def likeliest(probs: Mapping[str, float]) -> Label:
    """Return the label with the highest probability; the cheaper one of equals."""
    return max(LABELS, key=lambda label: probs[label])


class RouterReply(NamedTuple):
    """A router's decision on a question.

    Attributes:
        probs: The probabilities of A, B and C.
        doubt: Why the decision cannot be trusted, or None.
        source: The kind of router.
        profile: The LLM that it stands for; may be empty.
    """

    probs: dict[str, float]
    doubt: str | None
    source: str
    profile: str


class RouterLike(Protocol):
    """A router as hopgate uses it: label probabilities for a batch of questions."""

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Return the probabilities of A, B and C for each question."""
        ...


class AlphaRouter(Protocol):
    """A router that routes at several α at once."""

    def route_alphas(
        self, questions: Sequence[str], alphas: Sequence[float]
    ) -> list[list[dict[str, float]]]:
        """Return the probabilities of A, B and C for each question, one list for each α."""
        ...


def routed(router: RouterLike, questions: Sequence[str], alpha: float) -> list[RouterReply]:
    """Return a router's decision on each question; may block."""
    source, profile = (str(getattr(router, name, "")) for name in ("source", "profile"))
    both = zip(router.route(questions, alpha), doubts(router, questions), strict=True)
    return [
        RouterReply(
            {label: float(probs[label]) for label in LABELS}, doubt, source or "custom", profile
        )
        for probs, doubt in both
    ]


def doubts(router: object, questions: Sequence[str]) -> list[str | None]:
    """Return why a router's decisions cannot be trusted, if the router can tell."""
    known = getattr(router, "doubts", None)
    found: list[str | None] = known(questions) if known else [None] * len(questions)
    return found
