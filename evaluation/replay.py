"""What a router would have got on recorded outcomes, without asking any model again.

Every question was once answered with all three strategies (`hopgate label`, or published
labels). A replay routes the questions at some α and looks up whether the chosen strategy was
right, and what it cost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hopgate.common.strategies import LABELS, STRATEGIES

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
BATCH = 512
"""Questions routed at every α between two reports of progress."""

Picks: TypeAlias = NDArray[np.int8]
Probabilities: TypeAlias = NDArray[np.float64]


class Routes(Protocol):
    """What a replay asks of a router."""

    def route_alphas(
        self, questions: Sequence[str], alphas: Sequence[float]
    ) -> list[list[dict[str, float]]]:
        """Probabilities of A, B and C for each question, one list for each α."""


@dataclass(frozen=True)
class Outcomes:
    """Questions, with what each strategy got and cost.

    Attributes:
        questions: As the router gets them.
        datasets: Where each comes from; empty where that is not known.
        correct: [questions, 3], whether none, single and multi were right.
        steps: [questions, 3], what they cost: 0, 1 and multi-step's price.
    """

    questions: tuple[str, ...]
    datasets: NDArray[np.str_]
    correct: NDArray[np.bool_]
    steps: NDArray[np.float64]

    def right(self, picks: Picks) -> NDArray[np.bool_]:
        """Whether the picked strategies were right; `picks` is [..., questions]."""
        return self.correct[np.arange(len(self.questions)), picks]

    def cost(self, picks: Picks) -> NDArray[np.float64]:
        """The steps of the picked strategies; `picks` is [..., questions]."""
        return self.steps[np.arange(len(self.questions)), picks]

    def oracle(self) -> Picks:
        """The cheapest strategy that was right for each question; none where no one was."""
        return np.asarray(self.correct.argmax(-1), np.int8)

    def score(self, picks: Picks) -> dict[str, Any]:
        """`accuracy`, mean `steps`, `shares` of A, B and C, and these in each of `datasets`."""
        named = [str(name) for name in np.unique(self.datasets) if name]
        return {
            **self._score(picks, np.ones(len(picks), bool)),
            "datasets": {name: self._score(picks, self.datasets == name) for name in named},
        }

    def _score(self, picks: Picks, among: NDArray[np.bool_]) -> dict[str, Any]:
        shares = np.bincount(picks[among], minlength=len(LABELS)) / among.sum()
        return {
            "accuracy": float(self.right(picks)[among].mean()),
            "steps": float(self.cost(picks)[among].mean()),
            "shares": dict(zip(LABELS, shares.tolist(), strict=True)),
        }


class Routed(NamedTuple):
    """What a router decided.

    Attributes:
        picks: [alphas, questions], 0, 1 and 2 for A, B and C.
        first: [questions, 3], the probabilities at the first α.
        last: The same at the last α.
    """

    picks: Picks
    first: Probabilities
    last: Probabilities


def outcomes(
    questions: Sequence[QuestionRow],
    labels: Iterable[LabelRow],
    multi_steps: Mapping[str, float],
) -> Outcomes:
    """Joins questions and their recorded outcomes.

    Args:
        questions: All that are to be routed.
        labels: Outcomes; a question without one is wrong under every strategy.
        multi_steps: Multi-step's price for each dataset of the questions (`prices`).

    Raises:
        ValueError: If there are no questions, or a label lacks `correct` or has an id that the
            questions do not have.
    """
    if not questions:
        raise ValueError("there are no questions to replay; give at least one")
    recorded = {row.id: _recorded(row) for row in labels}
    known = {question.id for question in questions}
    if strange := [each for each in recorded if each not in known]:
        raise ValueError(
            f"{len(strange)} of {len(recorded)} labels, the first with id {strange[0]!r}, are of "
            "questions that the question file lacks; give the file that they were made from, or "
            "none"
        )
    correct = [[name in recorded.get(each.id, ()) for name in STRATEGIES] for each in questions]
    return Outcomes(
        questions=tuple(each.question for each in questions),
        datasets=np.array([each.dataset for each in questions]),
        correct=np.array(correct, dtype=bool),
        steps=np.array([[0.0, 1.0, multi_steps[each.dataset]] for each in questions]),
    )


def _recorded(row: LabelRow) -> frozenset[str]:
    if row.correct is None:
        raise ValueError(
            f"the label with id {row.id!r} has no field correct; a replay needs, for every label, "
            "which of zero, one and multiple were right"
        )
    return row.correct


def prices(given: str | None, datasets: Iterable[str]) -> dict[str, float]:
    """What a multi-step answer costs, in steps, for each of `datasets`.

    Args:
        given: A number for all, or a JSON file with one for each dataset. Default:
            `MULTI_STEPS`, and `MEAN_MULTI_STEPS` for other datasets.
        datasets: Names; empty for questions of no known one.

    Raises:
        ValueError: If a price is missing, no number or below 1, or the file cannot be read.
    """
    names = sorted(set(datasets))
    if given is None:
        return {name: MULTI_STEPS.get(name, MEAN_MULTI_STEPS) for name in names}
    try:
        return dict.fromkeys(names, _price(float(given), "--steps-multi"))
    except ValueError:
        if not Path(given).is_file():
            raise ValueError(
                f"--steps-multi is {given!r}; give a number of at least 1, or a JSON file that "
                "has one for each dataset"
            ) from None
    return _read_prices(Path(given), names)


def _read_prices(path: Path, names: Sequence[str]) -> dict[str, float]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object; write {{dataset: steps}}")
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"{path} has no price for the dataset {missing[0]!r}; add it")
    return {name: _price(found[name], f"{path}, {name}") for name in names}


def _price(value: Any, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 1:
        raise ValueError(f"{where}: the steps are {value!r}; they must be a number of at least 1")
    return float(value)


def decide(
    router: Routes,
    questions: Sequence[str],
    alphas: Sequence[float],
    advance: Callable[[int], None],
) -> Routed:
    """Routes every question at every α; the likeliest label is picked, the cheaper of equals.

    Args:
        router: Gives the probabilities.
        questions: At least one.
        alphas: At least one, each from 0 to 1.
        advance: Called with how many more questions are done.
    """
    if not getattr(router, "one_pass", True):
        return _decide_by_alpha(router, questions, alphas, advance)
    parts = []
    for start in range(0, len(questions), BATCH):
        batch = list(questions[start : start + BATCH])
        parts.append(_decide(router.route_alphas(batch, alphas)))
        advance(len(batch))
    return Routed(
        picks=np.concatenate([part.picks for part in parts], axis=1),
        first=np.concatenate([part.first for part in parts]),
        last=np.concatenate([part.last for part in parts]),
    )


def _decide_by_alpha(
    router: Routes,
    questions: Sequence[str],
    alphas: Sequence[float],
    advance: Callable[[int], None],
) -> Routed:
    """As `decide`, for a router whose encoder differs by α: each α is blended once."""
    found = []
    for number, alpha in enumerate(alphas, 1):
        found += router.route_alphas(list(questions), [alpha])
        done = [len(questions) * count // len(alphas) for count in (number - 1, number)]
        advance(done[1] - done[0])
    return _decide(found)


def _decide(found: list[list[dict[str, float]]]) -> Routed:
    rows = np.array([[[each[label] for label in LABELS] for each in row] for row in found])
    # The first of equals, so the cheaper: as nodes.route.likeliest.
    return Routed(picks=rows.argmax(-1).astype(np.int8), first=rows[0], last=rows[-1])
