"""Which strategies answer a question: label rows, made by asking a model.

The rows have the shape of Flare-Aug's released labels (`hopgate.classifiers.labels`), with what
was answered and spent beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hopgate.common.strategies import FLARE_NAMES as NAMES
from hopgate.common.strategies import LABELS, Strategy
from hopgate.evaluation.asking import Answered
from hopgate.evaluation.retrievalqa import Example
from hopgate.evaluation.scores import mean

STRATEGIES: dict[Strategy, str] = {"none": "zero", "single": "one", "multi": "multiple"}
"""What the context calls a strategy, and what labels call it."""
JUDGES = ("em", "match")
Judge = Literal["em", "match"]


def label_row(
    example: Example, answers: Mapping[Strategy, Answered], judge: Judge
) -> dict[str, Any]:
    """A question's label row.

    Args:
        example: The question.
        answers: What each of `STRATEGIES` made of it, by the context's names.
        judge: `em`: right is what is an accepted answer, both normalised, as in Flare-Aug; `match`:
            what holds one. "I don't know" is never right.

    Returns:
        `id`, `question`, `dataset` if it is known, `correct`, `label` (None if no strategy was
        right), and by strategy, named as in `correct`: `answers`, `steps` (retrievals), `calls` (of
        the model), `tokens` (`prompt` and `completion`) and `ms`.
    """
    by_name = {name: answers[strategy] for strategy, name in STRATEGIES.items()}
    correct = [name for name, answer in by_name.items() if answer["known"] and answer[judge]]
    return {
        "id": example.id,
        "question": example.question,
        **({"dataset": example.source} if example.source else {}),
        "correct": correct,
        "label": LABELS[NAMES.index(correct[0])] if correct else None,
        "answers": {name: answer["prediction"] for name, answer in by_name.items()},
        "steps": {name: answer["retrieval_steps"] for name, answer in by_name.items()},
        "calls": {name: answer["llm_calls"] for name, answer in by_name.items()},
        "tokens": {name: _tokens(answer) for name, answer in by_name.items()},
        "ms": {name: answer["ms"] for name, answer in by_name.items()},
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What label rows come to.

    Returns:
        `questions`; `labels`, how many of each, `none` for those that no strategy answered; and by
        strategy `accuracy`, and means of a question: `steps`, `calls`, `ms`.
    """
    counts = Counter(row["label"] or "none" for row in rows)
    means = {
        field: {name: mean([row[field][name] for row in rows]) for name in NAMES}
        for field in ("steps", "calls", "ms")
    }
    return {
        "questions": len(rows),
        "labels": {label: counts[label] for label in (*LABELS, "none")},
        "accuracy": {name: mean([name in row["correct"] for row in rows]) for name in NAMES},
        **means,
    }


def _tokens(answer: Answered) -> dict[str, int]:
    return {"prompt": answer["prompt_tokens"], "completion": answer["completion_tokens"]}
