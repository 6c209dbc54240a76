"""What a router would have got on recorded outcomes, for a range of α."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hopgate.classifiers.checkpoint import LABELS
from hopgate.classifiers.labels import STRATEGIES

if TYPE_CHECKING:
    from hopgate.classifiers.labels import LabelRow, QuestionRow

MULTI_STEPS = {
    "squad": 4.52,
    "nq": 5.04,
    "trivia": 5.28,
    "musique": 3.60,
    "hotpotqa": 5.53,
    "2wikimultihopqa": 4.17,
}
"""Mean steps of the multi-step strategy, FLAN-T5-XL (Adaptive-RAG, table of steps)."""
MEAN_MULTI_STEPS = 4.69
"""For questions of other datasets: the mean over the six."""


class Routes(Protocol):
    """What `replay` asks of a router."""

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Probabilities of A, B and C for each question."""


def replay(
    router: Routes,
    questions: Sequence[QuestionRow],
    labels: Iterable[LabelRow],
    alphas: Sequence[float],
) -> list[dict[str, Any]]:
    """Accuracy, steps and shares of the router's most probable label, for each α.

    A costs no step, B one, C the mean of the multi-step strategy on the question's dataset.

    Args:
        router: Gives the probabilities.
        questions: All that are routed.
        labels: Outcomes; a question without one is wrong under every strategy.
        alphas: Each from 0 to 1.

    Returns:
        One row an α: `alpha`, `accuracy`, `steps` (mean), `shares` of A, B and C.

    Raises:
        ValueError: If there are no questions, or labels without `correct`.
    """
    outcomes = {row.id: row.correct for row in labels}
    if not questions or None in outcomes.values():
        raise ValueError("a replay needs questions, and labels with the field correct")
    texts = [question.question for question in questions]
    rows = []
    for alpha in alphas:
        picks = [max(LABELS, key=row.__getitem__) for row in router.route(texts, alpha)]
        right = sum(
            STRATEGIES[LABELS.index(pick)] in (outcomes.get(question.id) or ())
            for question, pick in zip(questions, picks, strict=True)
        )
        steps = sum(
            {"A": 0.0, "B": 1.0}.get(pick, MULTI_STEPS.get(question.dataset, MEAN_MULTI_STEPS))
            for question, pick in zip(questions, picks, strict=True)
        )
        rows.append(
            {
                "alpha": alpha,
                "accuracy": right / len(texts),
                "steps": steps / len(texts),
                "shares": {label: picks.count(label) / len(texts) for label in LABELS},
            }
        )
    return rows
