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
    reason: str


def forced(strategy: Strategy, alpha: float, reason: str) -> RouteDecision:
    """Build the decision where a person chose the strategy; no classifier runs."""
    return RouteDecision(
        label=LABELS[strategy],
        probs={},
        alpha=alpha,
        source="forced",
        reason=reason,
    )


def likeliest(probs: Mapping[str, float]) -> Label:
    """Return the label of the highest probability; the cheaper one of equals."""
    return max(STRATEGIES, key=lambda label: probs[label])


async def classify(
    classifier: Classifier, question: str, alpha: float, gate: GateDecision
) -> RouteDecision:
    """Choose the likeliest label; A becomes B where retrieval is already promised.

    Args:
        classifier: The router.
        question: The standalone question.
        alpha: 0 cheapest to 1 most reliable.
        gate: The gate's decision: a Yes means that the model asked for help, and
            α = 1 promises at least one retrieval.
    """
    (probs,) = await asyncio.to_thread(classifier.route, [question], alpha)
    probs = {label: float(probs[label]) for label in STRATEGIES}
    label = likeliest(probs)
    reason = f"{label} is the likeliest at α = {alpha:g}"
    if label == "A" and alpha == 1:
        label, reason = "B", "A is the likeliest, but α = 1 promises a retrieval"
    elif label == "A" and gate["retrieve"] and gate["answer"] != "skipped":
        label, reason = "B", "A is the likeliest, but the gate asked for retrieval"
    source = str(getattr(classifier, "source", "custom"))
    return RouteDecision(label=label, probs=probs, alpha=alpha, source=source, reason=reason)
