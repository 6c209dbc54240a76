"""What a run of questions comes to: decisions, answers, tokens, money and time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from hopgate.evaluation.retrievalqa import KINDS

RESAMPLES = 10_000
RIGHT, WRONG, UNKNOWN = "right", "wrong", "unknown"
OUTCOMES = (RIGHT, WRONG, UNKNOWN)
MUST_RETRIEVE, ANSWERABLE = "must-retrieve", "answerable"


class Prediction(TypedDict):
    """What was decided, answered and spent on one question: a line of the predictions file."""

    id: str
    question: str
    source: str
    answerable: bool | None
    """Whether a model can answer it alone. None: not in the data, which counts as no."""
    retrieve: bool
    verdict: str
    """The gate's answer: yes, no, invalid or skipped."""
    p_yes: float | None
    uncertainty: float | None
    prediction: str
    known: bool
    """False: the answer is "I don't know"."""
    match: bool
    em: bool
    f1: float
    retrieval_steps: int
    llm_calls: int
    prompt_tokens: int
    completion_tokens: int
    ms: float


class Price(NamedTuple):
    """Money for a million tokens, in whatever currency the price file is in.

    Attributes:
        input: Of the prompt.
        output: Of the completion.
    """

    input: float
    output: float


def read_price(path: Path, model: str) -> Price:
    """Reads a model's price from a JSON file: `{"MODEL": {"input": 0.15, "output": 0.60}}`.

    Args:
        path: The file.
        model: As it was resolved. `openai:NAME` may stand in the file as `NAME`.

    Raises:
        ValueError: If the file cannot be read, lacks the model, or a price is no number of at
            least 0.
    """
    try:
        prices = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"--prices {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--prices {path} is not a JSON file: {error}") from error
    if not isinstance(prices, dict):
        raise ValueError(f'{path} holds no JSON object; write {{"MODEL": {{"input": 0.15, …}}}}')
    name = next((each for each in (model, model.partition(":")[2]) if each in prices), None)
    if name is None:
        there = ", ".join(sorted(map(str, prices))) or "none"
        raise ValueError(f"{path} has no price for model {model!r} (it has {there}); add it")
    found = prices[name]
    if not isinstance(found, dict):
        raise ValueError(f"{path}: {name} is {found!r}; write input and output")
    return Price(*(_amount(found.get(side), f"{path}: {name}: {side}") for side in Price._fields))


def _amount(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{where} is {value!r}; it must be a number of at least 0")
    return float(value)


def summarise(predictions: Sequence[Prediction], price: Price | None = None) -> dict[str, Any]:
    """What predictions come to. Shares and scores are from 0 to 1; no text of theirs is kept.

    Args:
        predictions: At least one, each question once.
        price: Of the model; None leaves cost out.

    Returns:
        The metrics of `headline`, and:

        - `flow`: how many questions, by `yes` and `no` (retrieved), were `right`, `wrong` or
          `unknown` (the paper's figure 1). "I don't know" is never right here, even where the
          match metric says so (gold "no" stands in "i dont know").
        - `tokens`: `prompt`, `completion` and `total`, and the same in `per_question`; the gate's
          call is included.
        - `llm_calls`, `retrieval_steps`: per question.
        - `cost`: `total` and `per_question`; None without a price, or where the
          endpoint counts no tokens.
        - `ms`: `mean`, `p50` and `p95` of a question's time.
        - `by_source`, `by_kind` (new-world and long-tail; other sources are in neither) and
          `by_need` (must-retrieve and answerable): `headline` of each part that occurs.
        - `decision`: see `decision`.

    Raises:
        ValueError: If there are no predictions.
    """
    return {
        **headline(predictions),
        "flow": _flow(predictions),
        "tokens": token_sums(predictions),
        "llm_calls": mean([row["llm_calls"] for row in predictions]),
        "retrieval_steps": mean([row["retrieval_steps"] for row in predictions]),
        "cost": money(predictions, price),
        "ms": latency(predictions),
        "by_source": _parts(predictions, lambda row: row["source"]),
        "by_kind": _parts(predictions, lambda row: KINDS.get(row["source"].lower())),
        "by_need": _parts(
            predictions, lambda row: ANSWERABLE if row["answerable"] else MUST_RETRIEVE
        ),
        "decision": decision(predictions),
    }


def headline(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """The metrics that are also given for each part of the questions.

    Returns:
        `n`; `retrieval_rate`, the share of questions that were retrieved for;
        `retrieval_accuracy`, the same among those that must be (the paper, section 3.2; None if
        there are none); the means of `match`, `em` and `f1`; `unknown`, the share of "I don't
        know"; `invalid`, the share of gate replies that were neither Yes nor No; and `interval`,
        the 95% bootstrap interval of `retrieval_accuracy` and `match`.

    Raises:
        ValueError: If there are no predictions.
    """
    if not predictions:
        raise ValueError("there are no predictions to score; answer at least one question")
    needed = [row["retrieve"] for row in predictions if not row["answerable"]]
    matched = [row["match"] for row in predictions]
    return {
        "n": len(predictions),
        "retrieval_rate": mean([row["retrieve"] for row in predictions]),
        "retrieval_accuracy": mean(needed) if needed else None,
        "match": mean(matched),
        "em": mean([row["em"] for row in predictions]),
        "f1": mean([row["f1"] for row in predictions]),
        "unknown": mean([not row["known"] for row in predictions]),
        "invalid": mean([row["verdict"] == "invalid" for row in predictions]),
        "interval": {
            "retrieval_accuracy": interval(needed) if needed else None,
            "match": interval(matched),
        },
    }


def interval(hits: Sequence[bool], seed: int = 0) -> list[float]:
    """The 95% bootstrap interval of a share, from the 2.5th to the 97.5th percentile.

    To draw n yes/no values with repetition from n that have a share of p, and count the yes, is
    to draw from the binomial distribution of n and p: that is what `RESAMPLES` draws are made of.
    Where all or none are yes, the interval has no width: it then says nothing of other questions.

    Args:
        hits: At least one.
        seed: Of the resampling.
    """
    generator = np.random.default_rng(seed)
    shares = generator.binomial(len(hits), np.mean(hits), RESAMPLES) / len(hits)
    low, high = np.quantile(shares, [0.025, 0.975], method="nearest")
    return [float(low), float(high)]


def decision(predictions: Sequence[Prediction]) -> dict[str, Any] | None:
    """How well the decision to retrieve tells must-retrieve questions from answerable ones.

    Over the questions whose `answerable` is known (the paper, appendix A.6): `n`, `accuracy`, and
    `precision`, `recall` and `f1`, each the plain mean over the two classes, where a division by
    0 counts as 0. None if it is known of none.
    """
    judged = [row for row in predictions if row["answerable"] is not None]
    if not judged:
        return None
    truth = np.array([not row["answerable"] for row in judged])
    chosen = np.array([row["retrieve"] for row in judged])
    classes = [_class_scores(truth == each, chosen == each) for each in (True, False)]
    precision, recall, f1 = (mean(list(scores)) for scores in zip(*classes, strict=True))
    return {
        "n": len(judged),
        "accuracy": float((truth == chosen).mean()),
        "precision": precision,
        "recall": recall,
        "f1": f1,
    }


def _class_scores(
    truth: NDArray[np.bool_], chosen: NDArray[np.bool_]
) -> tuple[float, float, float]:
    hits, told, there = int((truth & chosen).sum()), int(chosen.sum()), int(truth.sum())
    f1 = 2 * hits / (told + there) if told + there else 0.0
    return hits / told if told else 0.0, hits / there if there else 0.0, f1


def mean(values: Sequence[float]) -> float:
    """The plain mean of at least one value."""
    return float(np.mean(values))


def _flow(predictions: Sequence[Prediction]) -> dict[str, dict[str, int]]:
    flow = {way: dict.fromkeys(OUTCOMES, 0) for way in ("yes", "no")}
    for row in predictions:
        outcome = UNKNOWN if not row["known"] else RIGHT if row["match"] else WRONG
        flow["yes" if row["retrieve"] else "no"][outcome] += 1
    return flow


def token_sums(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """`prompt`, `completion` and `total`, and the same in `per_question`."""
    prompt = sum(row["prompt_tokens"] for row in predictions)
    completion = sum(row["completion_tokens"] for row in predictions)
    totals = {"prompt": prompt, "completion": completion, "total": prompt + completion}
    return totals | {
        "per_question": {name: each / len(predictions) for name, each in totals.items()}
    }


def money(predictions: Sequence[Prediction], price: Price | None) -> dict[str, float] | None:
    """What the tokens cost: `total` and `per_question`; None without a price or counts."""
    tokens = token_sums(predictions)
    uncounted = not tokens["total"] and any(row["llm_calls"] for row in predictions)
    if price is None or uncounted:
        return None
    total = (tokens["prompt"] * price.input + tokens["completion"] * price.output) / 1e6
    return {"total": total, "per_question": total / len(predictions)}


def latency(predictions: Sequence[Prediction]) -> dict[str, float]:
    """`mean`, `p50` and `p95` of a question's milliseconds."""
    times = [row["ms"] for row in predictions]
    p50, p95 = np.percentile(times, [50, 95])
    return {"mean": mean(times), "p50": float(p50), "p95": float(p95)}


def _parts(
    predictions: Sequence[Prediction], part: Callable[[Prediction], str | None]
) -> dict[str, dict[str, Any]]:
    parts: dict[str, list[Prediction]] = {}
    for row in predictions:
        if name := part(row):
            parts.setdefault(name, []).append(row)
    return {name: headline(parts[name]) for name in sorted(parts)}
