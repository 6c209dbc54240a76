"""Question answering end to end: each strategy alone, and gate and router together at some α."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from hopgate.common.strategies import LABEL_OF as LABELS
from hopgate.evaluation.asking import Answered
from hopgate.evaluation.scores import Price, interval, latency, mean, money, token_sums
from hopgate.evaluation.specs import PROMPTED

ADAPTIVE = "adaptive"
STATIC = ("none", "single", "multi")
STRATEGIES = (*STATIC, ADAPTIVE)
ALPHAS = "0,0.4,1"
"""Of the adaptive strategy, where none are given."""


class System(NamedTuple):
    """One way to answer all questions.

    Attributes:
        name: `none`, `single`, `multi`, `adaptive:alpha=0.4` or `adaptive:alpha=0.4,escalate=4`.
        settings: What it sets of `hopgate.nodes.context.Context`.
    """

    name: str
    settings: dict[str, Any]

    @property
    def slug(self) -> str:
        """A name for files."""
        return self.name.replace(":", "_")

    @property
    def alpha(self) -> float | None:
        """α of an adaptive system; None: it has none."""
        found: float | None = self.settings.get("alpha")
        return found

    @property
    def dated(self) -> bool:
        """Whether a prompt says which day it is."""
        return self.settings.get("gate") in PROMPTED


def systems(
    strategies: str, alphas: str | None, gate: str, router: str, profile: str, escalate: int = 0
) -> list[System]:
    """What is to be run: each static strategy once, the adaptive one for each α.

    With `escalate`, the adaptive one runs twice for each α: without and with it.

    Args:
        strategies: Names of `STRATEGIES`, with commas between them.
        alphas: Numbers from 0 to 1, with commas between them; None: `ALPHAS`.
        gate: Of the adaptive strategy; `off`: the router alone decides.
        router: Its router.
        profile: The router's profile.
        escalate: Most retrievals for going deeper where an answer is in doubt.

    Raises:
        ValueError: If a name or a number is none, is given twice, or there is no use for `alphas`
            or `escalate`.
    """
    names = _listed("--strategies", strategies)
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise ValueError(
            f"--strategies: there is no strategy {unknown[0]!r}; use {', '.join(STRATEGIES)}"
        )
    if alphas is not None and ADAPTIVE not in names:
        raise ValueError(f"--alphas is for the strategy {ADAPTIVE}; add it, or leave --alphas out")
    if escalate and ADAPTIVE not in names:
        raise ValueError(f"--escalate is for the strategy {ADAPTIVE}; add it, or leave it out")
    decided = {"gate": gate, "router": router, "profile": profile}
    found = []
    for name in names:
        if name != ADAPTIVE:
            found.append(System(name, {"strategy": name}))
            continue
        for each in _listed("--alphas", ALPHAS if alphas is None else alphas):
            settings = {"alpha": _alpha(each), **decided}
            plain = System(f"{ADAPTIVE}:alpha={settings['alpha']:.10g}", settings)
            found.append(plain)
            if escalate:
                deeper = settings | {"escalate": escalate}
                found.append(System(f"{plain.name},escalate={escalate}", deeper))
    if twice := [name for name, count in Counter(each.name for each in found).items() if count > 1]:
        raise ValueError(f"{twice[0]} is given twice; leave one out")
    return found


def _listed(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"{option} is {text!r}; give names with one comma between them")
    return names


def _alpha(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not 0 <= alpha <= 1:
        raise ValueError(f"--alphas: {text!r} is no number from 0 to 1")
    return alpha


def summarise(answers: Sequence[Answered], price: Price | None = None) -> dict[str, Any]:
    """What a system's answers come to. Shares and scores are from 0 to 1; no text is kept.

    Args:
        answers: At least one, each question once.
        price: Of the model; None leaves cost out.

    Returns:
        The scores of `headline`, and `tokens`, `cost` and `ms` as
        `hopgate.evaluation.scores.summarise`; `shares` of A, B and C by the path that was taken
        (a gate's No counts as A); `stop_reasons`, how many loops ended for each; `invalid`, the
        share of gate replies that were neither Yes nor No; and `by_dataset`, `headline` of each
        dataset that is named.
    """
    paths = Counter(LABELS[row["strategy"]] for row in answers)
    reasons = Counter(row["stop_reason"] for row in answers if row["stop_reason"])
    datasets = sorted({row["source"] for row in answers} - {""})
    return {
        **headline(answers),
        "tokens": token_sums(answers),
        "cost": money(answers, price),
        "ms": latency(answers),
        "shares": {label: paths[label] / len(answers) for label in LABELS.values()},
        "stop_reasons": dict(reasons.most_common()),
        "invalid": mean([row["verdict"] == "invalid" for row in answers]),
        "by_dataset": {
            name: headline([row for row in answers if row["source"] == name]) for name in datasets
        },
    }


def headline(answers: Sequence[Answered]) -> dict[str, Any]:
    """The scores that are also given for each dataset.

    Returns:
        `n`; the means of `match` (accuracy: an accepted answer stands in the answer), `em` and
        `f1`, where "I don't know" is never right; `unknown`, the share of "I don't know";
        `retrieval_steps` and `llm_calls` of a question; and `interval`, the 95% bootstrap interval
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
