"""Predictions for tests of scores and reports."""

from typing import Any

from hopgate.evaluation.measuring.scores import Prediction


def prediction(**fields: Any) -> Prediction:
    """A prediction with some fields set by the test."""
    found: dict[str, Any] = {
        "id": "1", "question": "Who?", "source": "popqa", "answerable": None,
        "retrieve": True, "verdict": "yes", "p_yes": None, "uncertainty": None,
        "prediction": "Orne", "known": True, "match": False, "em": False, "f1": 0.0,
        "retrieval_steps": 1, "llm_calls": 2, "prompt_tokens": 100, "completion_tokens": 10,
        "ms": 50.0,
    }  # fmt: skip
    return Prediction(**(found | fields))  # type: ignore[typeddict-item]
