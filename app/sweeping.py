"""Routers on recorded outcomes, for `hopgate sweep` and `hopgate calibrate`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.evaluation.writing import check_folder, json_bytes, write_files

if TYPE_CHECKING:
    from hopgate.evaluation.calibration import Goal
    from hopgate.evaluation.replay import Outcomes

DOCUMENT, PICTURE = "sweep.json", "sweep.png"
ALPHAS = 201


class Recorded(NamedTuple):
    """Where outcomes come from.

    Attributes:
        labels: JSONL of label rows with `correct`.
        questions: JSONL of all questions; None: those of the labels.
        steps_multi: Multi-step's price: a number, a JSON file, or None for the published ones.
    """

    labels: Path
    questions: Path | None
    steps_multi: str | None

    def read(self) -> tuple["Outcomes", dict[str, Any]]:
        """The outcomes, and what to write down about where they come from.

        Raises:
            ValueError: If a file or a price is wrong, or labels and questions do not fit.
        """
        from hopgate.classifiers.labels import read_labels, read_questions
        from hopgate.evaluation.replay import outcomes, prices

        labels = read_labels(self.labels)
        questions = read_questions(self.questions) if self.questions else labels
        steps = prices(self.steps_multi, {question.dataset for question in questions})
        try:
            recorded = outcomes(questions, labels, steps)
        except ValueError as error:
            raise ValueError(f"{self.labels}: {error}") from error
        return recorded, {
            "labels": str(self.labels),
            "questions": str(self.questions) if self.questions else None,
            "multi_steps": steps,
            "question_count": len(questions),
            "answered_count": int(recorded.correct.any(-1).sum()),
        }


def sweep(
    routers: Sequence[str],
    profile: str | None,
    recorded: Recorded,
    points: int,
    out: Path,
    overwrite: bool,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Replays routers over the range of α and writes `sweep.json` and `sweep.png`.

    Args:
        routers: Folders, or `builtin`.
        profile: Of all routers; default: the first of each.
        recorded: The outcomes.
        points: How many α, evenly from 0 to 1.
        out: Folder to write into; it is made if it is not there.
        overwrite: Replace a sweep that is there.
        advance: Called with how many questions are done, and the total.

    Returns:
        What is in `sweep.json`: see `hopgate.evaluation.sweep.sweep`, and `inputs`.

    Raises:
        ValueError: If an input is wrong, or `out` holds a sweep already.
        RuntimeError: If matplotlib is missing, or `out` cannot be written to.
    """
    from hopgate.classifiers.router import load_router
    from hopgate.evaluation import plots
    from hopgate.evaluation.sweep import evenly
    from hopgate.evaluation.sweep import sweep as replay_all

    _check_out(out, overwrite)
    plots.require_matplotlib()
    alphas = evenly(points)
    outcomes, inputs = recorded.read()
    loaded = {name: load_router(name, profile) for name in routers}
    document = replay_all(loaded, outcomes, alphas, advance)
    document["inputs"] = inputs | {"points": points}
    write_files(out, {PICTURE: plots.png(document), DOCUMENT: json_bytes(document)})
    return document


def calibrate(
    router: str,
    profile: str | None,
    recorded: Recorded,
    goal: "Goal",
    save: str | None,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Chooses the α that meets a goal, and stores it with the router if asked.

    Args:
        router: Folder, or `builtin`.
        profile: Of the router; default: its first.
        recorded: The outcomes.
        goal: A step budget or an accuracy floor.
        save: Name of the setting to store; None stores nothing.
        advance: Called with how many questions are done, and the total.

    Returns:
        As `hopgate.evaluation.calibration.calibrate`, with `router`, `profile`, `goal`, `multi`
        (accuracy and steps of the multi-step strategy), `inputs` and `saved`, the setting's name
        or None.

    Raises:
        ValueError: If an input is wrong or no α meets the goal.
        RuntimeError: If the setting cannot be stored.
    """
    from hopgate.classifiers import saved_alphas
    from hopgate.classifiers.router import load_router
    from hopgate.evaluation.calibration import calibrate as choose
    from hopgate.evaluation.replay import decide
    from hopgate.evaluation.sweep import evenly

    if save is not None:
        saved_alphas.check_name(save)
        saved_alphas.check_writable(router)
    outcomes, inputs = recorded.read()
    classifier = load_router(router, profile)
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        advance(done, len(outcomes.questions))

    alphas = evenly(ALPHAS)
    routed = decide(classifier, outcomes.questions, alphas, count)
    found = choose(outcomes, routed.picks, alphas, goal)
    if save is not None:
        setting = {key: found[key] for key in ("alpha", "accuracy", "steps")}
        setting |= {
            "profile": classifier.profile,
            "goal": _given(goal),
            "labels": recorded.labels.name,
            "date": date.today().isoformat(),
        }
        saved_alphas.save_alpha(router, save, setting)
    return {
        "router": router,
        "profile": classifier.profile,
        "goal": _given(goal),
        **found,
        "multi": {
            "accuracy": float(outcomes.correct[:, 2].mean()),
            "steps": float(outcomes.steps[:, 2].mean()),
        },
        "inputs": inputs,
        "saved": save,
    }


def named_alpha(name: str, router: str, profile: str, model: str) -> float:
    """The α that `calibrate` saved under a name.

    Args:
        name: Of the setting.
        router: Folder, or `builtin`.
        profile: The one in use; `auto`: the one most like the model.
        model: The model in use.

    Raises:
        ValueError: If there is no such setting, or it is of another profile.
    """
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.classifiers.saved_alphas import saved_alpha
    from hopgate.models import chat

    return saved_alpha(router, name, chosen_profile(router, profile, chat.resolve(model)))


def _given(goal: "Goal") -> dict[str, float]:
    return {name: value for name, value in asdict(goal).items() if value is not None}


def _check_out(out: Path, overwrite: bool) -> None:
    check_folder(out)
    if any((out / name).exists() for name in (DOCUMENT, PICTURE)) and not overwrite:
        raise ValueError(f"{out} holds a sweep; choose another folder, or give --overwrite")
