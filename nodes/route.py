"""The router: no retrieval (A), one step (B) or several (C), at the request's α."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from typing_extensions import TypedDict

from hopgate.nodes.gate import GateDecision

Label = Literal["A", "B", "C"]
Strategy = Literal["none", "single", "multi"]

STRATEGIES: dict[Label, Strategy] = {"A": "none", "B": "single", "C": "multi"}
LABELS: dict[Strategy, Label] = {strategy: label for label, strategy in STRATEGIES.items()}


class Classifier(Protocol):
    """What the node needs of a router: label probabilities for a batch of questions."""

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Return the probabilities of A, B and C for each question."""
        ...


class RouteDecision(TypedDict):
    """The route taken, and why; plain values for the state."""

    label: Label
    probs: dict[str, float]
    alpha: float
    source: str
    profile: str
    reason: str


def forced(strategy: Strategy, alpha: float, reason: str) -> RouteDecision:
    """Build the decision where a person chose the strategy; no classifier runs."""
    return RouteDecision(
        label=LABELS[strategy],
        probs={},
        alpha=alpha,
        source="forced",
        profile="",
        reason=reason,
    )


def likeliest(probs: Mapping[str, float]) -> Label:
    """Return the label of the highest probability; the cheaper one of equals."""
    return max(STRATEGIES, key=lambda label: probs[label])


def decide(probs: Mapping[str, float], alpha: float, doubt: str | None) -> tuple[Label, str]:
    """Return the likeliest label, or B where A cannot be right, with the reason.

    Args:
        probs: The router's.
        alpha: The request's; 1 promises at least one retrieval.
        doubt: Why this decision deserves no trust, if so; then B is the safe choice over A.
    """
    label = likeliest(probs)
    if label == "A" and doubt:
        return "B", f"A is the likeliest, but {doubt}"
    if label == "A" and alpha == 1:
        return "B", "A is the likeliest, but α = 1 promises a retrieval"
    return label, f"{label} is the likeliest at α = {alpha:g}" + (f"; {doubt}" if doubt else "")


def doubts(classifier: Classifier, questions: Sequence[str]) -> list[str | None]:
    """Return what the classifier says against its own decisions, if it is one that can tell."""
    known = getattr(classifier, "doubts", None)
    found: list[str | None] = known(questions) if known else [None] * len(questions)
    return found


async def classify(
    classifier: Classifier, question: str, alpha: float, gate: GateDecision
) -> RouteDecision:
    """Choose the likeliest label; A becomes B where retrieval is already promised.

    Args:
        classifier: The router.
        question: The standalone question.
        alpha: 0 cheapest to 1 most reliable.
        gate: The gate's decision: a Yes means that the model asked for help. α = 1 and a
            question that the router was not made for (cut, or of another language) ask for
            a retrieval too; the reason says so.
    """
    (probs,), (doubt,) = await asyncio.to_thread(
        lambda: (classifier.route([question], alpha), doubts(classifier, [question]))
    )
    probs = {label: float(probs[label]) for label in STRATEGIES}
    label, reason = decide(probs, alpha, doubt)
    if label == "A" and gate["retrieve"] and gate["answer"] != "skipped":
        label, reason = "B", "A is the likeliest, but the gate asked for retrieval"
    return RouteDecision(
        label=label,
        probs=probs,
        alpha=alpha,
        source=str(getattr(classifier, "source", "custom")),
        profile=str(getattr(classifier, "profile", "")),
        reason=reason,
    )
