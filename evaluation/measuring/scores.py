"""Summaries of a run: decisions, answers, tokens and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from hopgate.common.strategies import STRATEGIES, Strategy
from hopgate.evaluation.measuring.datasets import KINDS


class Prediction(TypedDict):
    """The decision, answer and usage of one question: a line of the predictions file."""

    id: str
    question: str
    source: str
    answerable: bool | None
    """Whether a model can answer without retrieval; None (unknown) counts as no."""
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


class Answered(Prediction):
    """The decision, answer and usage of the whole graph for one question."""

    strategy: Strategy
    """The path that was taken."""
    stop_reason: str | None
    """Why the loop ended; None without a loop."""
    cited: int
    """Number of passages that the answer rests on."""
    doubt: str | None
    """Why the answer may not be good enough; see `hopgate.nodes.run.state.Decision`."""


Row = TypeVar("Row", bound=Prediction)


def summarise(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Summarise predictions; shares and scores are from 0 to 1, and no text is included.

    Args:
        predictions: At least one, each question once.

    Returns:
        The metrics of `headline`, and:

            - `flow`: how many questions, by `yes` and `no` (retrieved), were `right`, `wrong` or
              `unknown` (the paper's figure 1). "I don't know" is never right here, even where the
              match metric says so (gold "no" is contained in "i dont know").
            - `tokens`: `prompt`, `completion` and `total`, and the same in `per_question`; the
              gate's call is included.
            - `llm_calls`, `retrieval_steps`: per question.
            - `ms`: `mean`, `p50` and `p95` of a question's time.
            - `by_source`, `by_kind` (new-world and long-tail; other sources are in neither) and
              `by_need` (must-retrieve and answerable): `headline` of each group that occurs.
            - `decision`: see `decision`.

    """
    return {
        **headline(predictions),
        **_usage(predictions),
        "flow": _flow(predictions),
        "by_source": _parts(predictions, headline, lambda row: row["source"]),
        "by_kind": _parts(predictions, headline, lambda row: KINDS.get(row["source"].lower(), "")),
        "by_need": _parts(
            predictions,
            headline,
            lambda row: "answerable" if row["answerable"] else "must-retrieve",
        ),
        "decision": decision(predictions),
    }


def headline(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the metrics that are also given for each group of questions.

    Returns:
        `n`; `retrieval_rate`, the share of questions with a retrieval; `retrieval_accuracy`, the
        same among questions that must retrieve (the paper, section 3.2; None without any); the
        means of `match`, `em` and `f1`; `unknown`, the share of "I don't know"; `invalid`, the
        share of gate replies that were neither Yes nor No; and `interval`, the 95% bootstrap
        interval of `retrieval_accuracy` and `match`.
    """
    needed = [row["retrieve"] for row in predictions if not row["answerable"]]
    return {
        "n": len(predictions),
        "retrieval_rate": _mean(predictions, "retrieve"),
        "retrieval_accuracy": mean(needed) if needed else None,
        **{name: _mean(predictions, name) for name in ("match", "em", "f1")},
        "unknown": mean([not row["known"] for row in predictions]),
        "invalid": mean([row["verdict"] == "invalid" for row in predictions]),
        "interval": {
            "retrieval_accuracy": interval(needed) if needed else None,
            "match": interval([row["match"] for row in predictions]),
        },
    }


def summarise_qa(answers: Sequence[Answered]) -> dict[str, Any]:
    """Summarise a strategy's answers; shares and scores are from 0 to 1, and no text is included.

    Args:
        answers: At least one, each question once.

    Returns:
        The scores of `headline_qa`, and `tokens` and `ms` as `summarise`; `shares` of the
        strategies that were taken (a gate's No counts as `none`); `stop_reasons`, how many loops
        ended for each; `invalid`, the share of gate replies that were neither Yes nor No; and
        `by_dataset`, `headline_qa` of each named dataset.
    """
    taken = Counter(row["strategy"] for row in answers)
    reasons = Counter(row["stop_reason"] for row in answers if row["stop_reason"])
    return {
        **headline_qa(answers),
        **_usage(answers),
        "invalid": mean([row["verdict"] == "invalid" for row in answers]),
        "shares": {name: taken[name] / len(answers) for name in STRATEGIES},
        "stop_reasons": dict(reasons.most_common()),
        "by_dataset": _parts(answers, headline_qa, lambda row: row["source"]),
    }


def headline_qa(answers: Sequence[Answered]) -> dict[str, Any]:
    """Return the scores that are also given for each dataset.

    Returns:
        `n`; the means of `match` (accuracy: the answer contains an accepted one), `em` and `f1`,
        where "I don't know" is never correct; `unknown`, the share of "I don't know";
        `retrieval_steps` and `llm_calls` per question; and `interval`, the 95% bootstrap interval
        of `match` and `em`.
    """
    match = [row["known"] and row["match"] for row in answers]
    em = [row["known"] and row["em"] for row in answers]
    return {
        "n": len(answers),
        "match": mean(match),
        "em": mean(em),
        "f1": mean([row["known"] * row["f1"] for row in answers]),
        "unknown": mean([not row["known"] for row in answers]),
        "retrieval_steps": _mean(answers, "retrieval_steps"),
        "llm_calls": _mean(answers, "llm_calls"),
        "interval": {"match": interval(match), "em": interval(em)},
    }


def interval(hits: Sequence[bool]) -> list[float]:
    """Return the 95% bootstrap interval of a share, from the 2.5th to the 97.5th percentile.

    The number of hits in n draws with replacement from n values, a share p of them hits, has the
    binomial distribution of n and p, so the percentiles are exact and nothing is drawn. Where all
    or none are hits, the interval has no width: it then says nothing about other questions.

    Args:
        hits: At least one.
    """
    from scipy.stats import binom

    low, high = binom.ppf([0.025, 0.975], len(hits), np.mean(hits)) / len(hits)
    return [float(low), float(high)]


def decision(predictions: Sequence[Prediction]) -> dict[str, Any] | None:
    """Score the decision to retrieve as a classifier of questions that must retrieve.

    Over the questions whose `answerable` is known (the paper, appendix A.6): `n`, `accuracy`, and
    macro `precision`, `recall` and `f1`, where a division by 0 counts as 0. None if it is known
    for no question.
    """
    judged = [row for row in predictions if row["answerable"] is not None]
    if not judged:
        return None
    truth = [not row["answerable"] for row in judged]
    chosen = [row["retrieve"] for row in judged]
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    found = precision_recall_fscore_support(
        truth, chosen, labels=[False, True], average="macro", zero_division=0
    )
    scores = zip(("precision", "recall", "f1"), map(float, found[:3]), strict=True)
    return {"n": len(judged), "accuracy": float(accuracy_score(truth, chosen)), **dict(scores)}


def percentile_interval(values: Sequence[float] | NDArray[np.float64]) -> list[float]:
    """Return the 2.5th and the 97.5th percentile, as values that occur.

    Args:
        values: One of each resample, at least one.
    """
    low, high = np.quantile(np.asarray(values), [0.025, 0.975], method="nearest")
    return [float(low), float(high)]


def resampled_means(
    values: NDArray[np.float64], resamples: int, seed: int = 0
) -> NDArray[np.float64]:
    """Return the mean of each row of values in each bootstrap resample of the columns.

    One product scores all rows in a resample; `scipy.stats.bootstrap` would build an array of
    rows × columns × resamples.

    Args:
        values: [rows, columns], such as figures × questions; all rows are resampled alike.
        resamples: How many.
        seed: Of the resampling.

    Returns:
        [resamples, rows].
    """
    columns = values.shape[1]
    generator, even = np.random.default_rng(seed), np.full(columns, 1 / columns)
    weights = (generator.multinomial(columns, even) / columns for _ in range(resamples))
    return np.array([values @ each for each in weights])


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return float(np.mean(values))


def _flow(predictions: Sequence[Prediction]) -> dict[str, dict[str, int]]:
    flow = {way: dict.fromkeys(("right", "wrong", "unknown"), 0) for way in ("yes", "no")}
    for row in predictions:
        outcome = "unknown" if not row["known"] else "right" if row["match"] else "wrong"
        flow["yes" if row["retrieve"] else "no"][outcome] += 1
    return flow


def _usage(rows: Sequence[Prediction]) -> dict[str, Any]:
    """Return `tokens`, `ms`, `llm_calls` and `retrieval_steps`; see `summarise`."""
    prompt = sum(row["prompt_tokens"] for row in rows)
    completion = sum(row["completion_tokens"] for row in rows)
    tokens = {"prompt": prompt, "completion": completion, "total": prompt + completion}
    p50, p95 = np.percentile([row["ms"] for row in rows], [50, 95])
    each = {name: count / len(rows) for name, count in tokens.items()}
    return {
        "tokens": {**tokens, "per_question": each},
        "llm_calls": _mean(rows, "llm_calls"),
        "retrieval_steps": _mean(rows, "retrieval_steps"),
        "ms": {"mean": _mean(rows, "ms"), "p50": float(p50), "p95": float(p95)},
    }


def _mean(rows: Sequence[Mapping[str, Any]], field: str) -> float:
    return mean([row[field] for row in rows])


def _parts(
    rows: Sequence[Row], summary: Callable[[list[Row]], Any], part: Callable[[Row], str]
) -> dict[str, dict[str, Any]]:
    """Return the summary of each group of questions; those with an empty name are in none."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        if name := part(row):
            parts.setdefault(name, []).append(row)
    return {name: summary(parts[name]) for name in sorted(parts)}
