"""What follows from a router's probabilities: the label, and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopgate.common.strategies import LABELS, Label


def choose(probs: Mapping[str, float], alpha: float, doubt: str | None) -> tuple[Label, str]:
    """Return the likeliest label, or B where A cannot be right, with the reason.

    Args:
        probs: The router's probabilities of A, B and C.
        alpha: The request's α; 1 always retrieves.
        doubt: Why the router's decision cannot be trusted, or None; then B replaces A.
    """
    label = likeliest(probs)
    if label == "A" and doubt:
        return "B", f"A is the likeliest, but {doubt}"
    if label == "A" and alpha == 1:
        return "B", "A is the likeliest, but α = 1 always retrieves"
    return label, f"{label} is the likeliest at α = {alpha:g}" + (f"; {doubt}" if doubt else "")


def likeliest(probs: Mapping[str, float]) -> Label:
    """Return the label with the highest probability; the cheaper one of equals."""
    return max(LABELS, key=lambda label: probs[label])


def doubts(router: object, questions: Sequence[str]) -> list[str | None]:
    """Return why a router's decisions cannot be trusted, if the router can tell."""
    known = getattr(router, "doubts", None)
    found: list[str | None] = known(questions) if known else [None] * len(questions)
    return found
