"""Question answering end to end: each strategy alone, and gate and router together at some α."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hopgate.common.strategies import STRATEGIES
from hopgate.evaluation.harness import Answered
from hopgate.evaluation.scores import Price, interval, latency, mean, money, token_sums
from hopgate.evaluation.specs import PROMPTED

ADAPTIVE = "adaptive"
ALPHAS = "0,0.7,1"
"""Default α values of the adaptive strategy."""
DECIDING = (
    "gate", "gate_threshold", "gate_invalid", "gate_demos", "gate_date", "demos", "router",
    "profile",
)  # fmt: skip
"""Fields of `Context` that only the adaptive strategy uses."""


class System(NamedTuple):
    """One way to answer all questions.

    Attributes:
        name: `none`, `single`, `multi`, `adaptive:alpha=0.7` or `adaptive:alpha=0.7,escalate=4`.
        settings: Its own fields of `Context`.
    """

    name: str
    settings: dict[str, Any]

    @property
    def slug(self) -> str:
        """The name of its files."""
        return self.name.replace(":", "_")

    @property
    def dated(self) -> bool:
        """Whether a prompt names today's date."""
        return self.settings.get("gate") in PROMPTED and self.settings.get("gate_date", True)


def systems(
    strategies: str, alphas: str | None, escalate: int, settings: Mapping[str, Any]
) -> list[System]:
    """Return what to run: each static strategy once, the adaptive one for each α.

    With `escalate`, the adaptive one runs twice for each α: without and with it.

    Args:
        strategies: Names of strategies, or `adaptive`, separated by commas.
        alphas: Numbers from 0 to 1, separated by commas; None: `ALPHAS`.
        escalate: Maximum number of retrievals up to which answers in doubt are escalated.
        settings: Fields of `Context` for the adaptive strategy, those of `DECIDING`.

    Raises:
        ValueError: A name or number is invalid or given twice, or `alphas` or `escalate` is given
            without the adaptive strategy.
    """
    names = _split("--strategies", strategies)
    known = (*STRATEGIES, ADAPTIVE)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--strategies: unknown strategy {unknown[0]!r}; use {', '.join(known)}")
    if alphas is not None and ADAPTIVE not in names:
        raise ValueError(f"--alphas is for the strategy {ADAPTIVE}; add it, or leave --alphas out")
    if escalate and ADAPTIVE not in names:
        raise ValueError(f"--escalate is for the strategy {ADAPTIVE}; add it, or leave it out")
    found = []
    for name in names:
        if name != ADAPTIVE:
            found.append(System(name, {"strategy": name}))
            continue
        for each in _split("--alphas", ALPHAS if alphas is None else alphas):
            own = {"alpha": _alpha(each), **settings}
            plain = System(f"{ADAPTIVE}:alpha={own['alpha']:.10g}", own)
            found.append(plain)
            if escalate:
                escalating = own | {"escalate": escalate}
                found.append(System(f"{plain.name},escalate={escalate}", escalating))
    counts = Counter(each.name for each in found)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"{repeated[0]} is given twice; leave one out")
    return found


def _split(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{option} is {text!r}; separate values with single commas")
    return parts


def _alpha(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not 0 <= alpha <= 1:
        raise ValueError(f"--alphas: {text!r} is not a number from 0 to 1")
    return alpha


def summarise(answers: Sequence[Answered], price: Price | None = None) -> dict[str, Any]:
    """Summarise a system's answers; shares and scores are from 0 to 1, and no text is included.

    Args:
        answers: At least one, each question once.
        price: Price of the model; None leaves cost out.

    Returns:
        The scores of `headline`, and `tokens`, `cost` and `ms` as
        `hopgate.evaluation.scores.summarise`; `shares` of the strategies that were taken (a gate's
        No counts as `none`); `stop_reasons`, how many loops ended for each; `invalid`, the share
        of gate replies that were neither Yes nor No; and `by_dataset`, `headline` of each named
        dataset.
    """
    taken = Counter(row["strategy"] for row in answers)
    reasons = Counter(row["stop_reason"] for row in answers if row["stop_reason"])
    datasets = sorted({row["source"] for row in answers} - {""})
    return {
        **headline(answers),
        "tokens": token_sums(answers),
        "cost": money(answers, price),
        "ms": latency(answers),
        "shares": {name: taken[name] / len(answers) for name in STRATEGIES},
        "stop_reasons": dict(reasons.most_common()),
        "invalid": mean([row["verdict"] == "invalid" for row in answers]),
        "by_dataset": {
            name: headline([row for row in answers if row["source"] == name]) for name in datasets
        },
    }


def headline(answers: Sequence[Answered]) -> dict[str, Any]:
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
        "retrieval_steps": mean([row["retrieval_steps"] for row in answers]),
        "llm_calls": mean([row["llm_calls"] for row in answers]),
        "interval": {
            "match": interval(match),
            "em": interval(em),
        },
    }
