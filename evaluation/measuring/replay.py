"""Replaying routers on recorded outcomes, without asking any model again.

Every question was answered once with all three strategies (`hopgate label`, or published labels).
A replay routes the questions at some α and looks up whether the chosen strategy was correct, and
how many steps it took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from hopgate.classifiers.labels import LabelRow, QuestionRow, read_labels, read_questions
from hopgate.common.errors import explain
from hopgate.common.files import read_json
from hopgate.common.strategies import FLARE_NAMES, LABELS, STRATEGIES

if TYPE_CHECKING:
    from hopgate.classifiers.router import Router

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
"""Questions routed at every α between two progress updates."""

Choices: TypeAlias = NDArray[np.int8]
"""Indices into `LABELS`, and so into `STRATEGIES`."""
Probabilities: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Recorded:
    """Questions, with the outcome and the steps of each strategy.

    Attributes:
        questions: The questions, as a router gets them.
        datasets: The dataset of each; empty if unknown.
        correct: [questions, 3], whether none, single and multi were correct.
        steps: [questions, 3], the steps they take: 0, 1, and those of multi-step.
        answered: [questions, 3], whether each gave an answer other than "I don't know"; None if
            that is not known for all.
    """

    questions: tuple[str, ...]
    datasets: NDArray[np.str_]
    correct: NDArray[np.bool_]
    steps: NDArray[np.float64]
    answered: NDArray[np.bool_] | None = None

    def correct_for(self, choices: Choices) -> NDArray[np.bool_]:
        """Return whether the chosen strategies were correct; `choices` is [..., questions]."""
        return self.correct[np.arange(len(self.questions)), choices]

    def steps_for(self, choices: Choices) -> NDArray[np.float64]:
        """Return the steps of the chosen strategies; `choices` is [..., questions]."""
        return self.steps[np.arange(len(self.questions)), choices]

    def oracle(self) -> Choices:
        """Return the cheapest correct strategy for each question; none where no one was."""
        return np.asarray(self.correct.argmax(-1), np.int8)

    def score(self, choices: Choices) -> dict[str, Any]:
        """Return `accuracy`, mean `steps`, `shares` of A, B and C, and these by `datasets`."""
        right, steps = self.correct_for(choices), self.steps_for(choices)

        def among(rows: NDArray[np.bool_]) -> dict[str, Any]:
            shares = np.bincount(choices[rows], minlength=len(LABELS)) / rows.sum()
            return {
                "accuracy": float(right[rows].mean()),
                "steps": float(steps[rows].mean()),
                "shares": dict(zip(LABELS, shares.tolist(), strict=True)),
            }

        named = [str(name) for name in np.unique(self.datasets) if name]
        datasets = {name: among(self.datasets == name) for name in named}
        return {**among(np.ones(len(choices), bool)), "datasets": datasets}


class Routed(NamedTuple):
    """A router's decisions.

    Attributes:
        choices: [alphas, questions], 0, 1 and 2 for A, B and C.
        first: [questions, 3], the probabilities at the first α.
        last: The same at the last α.
    """

    choices: Choices
    first: Probabilities
    last: Probabilities


def read_recorded(
    labels: Path, questions: Path | None, steps_multi: str | None
) -> tuple[Recorded, dict[str, Any]]:
    """Read recorded outcomes.

    Args:
        labels: JSONL of label rows with `correct`.
        questions: JSONL of all questions; None: those of the labels.
        steps_multi: See `multi_steps`.

    Returns:
        The outcomes, and their origin for the results document.

    Raises:
        ValueError: A file or a number is invalid, or labels and questions do not match.
    """
    rows = read_labels(labels)
    given = read_questions(questions) if questions else rows
    steps = multi_steps(steps_multi, {each.dataset for each in given})
    try:
        recorded = join(given, rows, steps)
    except ValueError as error:
        raise ValueError(f"{labels}: {error}") from error
    return recorded, {
        "labels": str(labels),
        "questions": str(questions) if questions else None,
        "multi_steps": steps,
        "question_count": len(given),
        "answered_count": int(recorded.correct.any(-1).sum()),
    }


def join(
    questions: Sequence[QuestionRow], labels: Iterable[LabelRow], steps: Mapping[str, float]
) -> Recorded:
    """Join questions and their recorded outcomes.

    Args:
        questions: All questions to route.
        labels: Outcomes; a question without one counts as wrong under every strategy.
        steps: Steps of multi-step for each dataset of the questions; see `multi_steps`.

    Raises:
        ValueError: There are no questions, or a label lacks `correct` or has an unknown id.
    """
    if not questions:
        raise ValueError("there are no questions to replay; give at least one")
    correct_by_id = {row.id: row.correct for row in labels}
    if bare := next((each for each, correct in correct_by_id.items() if correct is None), None):
        raise ValueError(
            f"the label with id {bare!r} has no field correct; a replay needs to know, for every "
            f"label, which of {', '.join(FLARE_NAMES)} were correct"
        )
    known = {question.id for question in questions}
    if unknown := [each for each in correct_by_id if each not in known]:
        raise ValueError(
            f"{len(unknown)} of {len(correct_by_id)} labels, the first with id {unknown[0]!r}, "
            "belong to questions that the question file lacks; give the file that they were made "
            "from, or none"
        )
    correct = [
        [name in (correct_by_id.get(row.id) or ()) for name in STRATEGIES] for row in questions
    ]
    return Recorded(
        questions=tuple(each.question for each in questions),
        datasets=np.array([each.dataset for each in questions]),
        correct=np.array(correct, dtype=bool),
        steps=np.array([[0.0, 1.0, steps[each.dataset]] for each in questions]),
    )


def multi_steps(given: str | None, datasets: Iterable[str]) -> dict[str, float]:
    """Return the steps of a multi-step answer for each dataset.

    Args:
        given: A number for all, or a JSON file with one for each dataset. None: `MULTI_STEPS`,
            and `MEAN_MULTI_STEPS` for other datasets.
        datasets: Names; empty for questions of unknown origin.

    Raises:
        ValueError: A number is missing, invalid or below 1, or the file cannot be read.
    """
    names = sorted(set(datasets))
    if given is None:
        return {name: MULTI_STEPS.get(name, MEAN_MULTI_STEPS) for name in names}
    file = Path(given)
    steps = read_json(file, "--steps-multi") if file.is_file() else dict.fromkeys(names, given)
    least_one = Annotated[float, Field(ge=1, allow_inf_nan=False)]
    try:
        return TypeAdapter(dict[str, least_one]).validate_python(
            {name: steps.get(name) for name in names}
        )
    except ValidationError as error:
        raise ValueError(
            f"--steps-multi is {given!r}; give a number of at least 1, or a JSON file with one for "
            f"each dataset ({explain(error)})"
        ) from error


def route_all(
    router: Router,
    questions: Sequence[str],
    alphas: Sequence[float],
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> Routed:
    """Route every question at every α; the most probable label wins, ties go to the cheaper.

    Args:
        router: Gives the probabilities.
        questions: At least one.
        alphas: At least one, each from 0 to 1.
        advance: Called with how many questions are done, and the total.
    """
    count, one_pass = len(questions), router.one_pass
    if one_pass:
        parts = [(questions[at : at + BATCH], alphas) for at in range(0, count, BATCH)]
    else:  # its weights are blended anew for each α
        parts = [(questions, [alpha]) for alpha in alphas]
    found = []
    for done, (some, at) in enumerate(parts, 1):
        probabilities = router.route_alphas(list(some), at)
        found.append([[[each[label] for label in LABELS] for each in row] for row in probabilities])
        advance(count * done // len(parts), count)
    rows = np.concatenate(found, axis=1 if one_pass else 0)
    # argmax takes the first of equals, so the cheaper.
    return Routed(choices=rows.argmax(-1).astype(np.int8), first=rows[0], last=rows[-1])
