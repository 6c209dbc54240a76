"""`hopgate route`: the router on its own, for one question or a file of them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopgate.classifiers.decision import choose, doubts
from hopgate.common.files import atomic_write, read_jsonl
from hopgate.common.strategies import LABELS
from hopgate.nodes.texts.text import check_question

if TYPE_CHECKING:
    from hopgate.classifiers.router import Router

BATCH = 256


def route_one(question: str, alpha: float, router: str, profile: str) -> dict[str, Any]:
    """Route one question.

    Returns:
        `label`, `probs` of A, B and C, `alpha`, `reason`, `profile`, and `ms`, the time of the
        decision alone.
    """
    question = check_question(question)
    classifier = _load(router, profile)
    started = time.perf_counter()
    (found,) = _routes(classifier, [question], alpha)
    return {**found, "profile": classifier.profile, "ms": _ms_since(started)}


def route_file(
    source: Path,
    target: Path,
    alpha: float,
    router: str,
    profile: str,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Route every row of a JSONL file; rows keep all their fields and gain `route`.

    `route` holds `label`, `probs` of A, B and C, `alpha` and `reason`. The output appears when
    it is complete.

    Args:
        source: JSONL rows with `question` and without `route`.
        target: JSONL to write, in an existing folder; an existing file is replaced.
        alpha: 0 cheapest to 1 most reliable.
        router: Folder of the router's weights, or `builtin`.
        profile: Which LLM's outcomes the router follows, or `auto`.
        advance: Called with how many rows are done, and the total.

    Returns:
        `output`, `rows`, `alpha`, `profile`, the share of each label, and `ms`, the time of all
        decisions.

    Raises:
        ValueError: The file cannot be read or has no rows, a row has no question or already has
            `route` (the message names the line), or `target` cannot be a file.
    """
    if (target.exists() and not target.is_file()) or not target.parent.is_dir():
        raise ValueError(f"--out {target}: name a file to write, in a folder that exists")
    rows = read_jsonl(source, _row, expected="--questions with a `question` in each row")
    classifier = _load(router, profile)
    started = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        questions = [check_question(row["question"]) for row in batch]
        for row, found in zip(batch, _routes(classifier, questions, alpha), strict=True):
            row["route"] = found
        advance(first + len(batch), len(rows))
    ms = _ms_since(started)
    labels = [row["route"]["label"] for row in rows]
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)  # NaN passes through
    with atomic_write(target) as file:
        file.writelines(line.encode(errors="backslashreplace") for line in lines)
    return {
        "output": str(target),
        "rows": len(rows),
        "alpha": alpha,
        "profile": classifier.profile,
        "shares": {label: labels.count(label) / len(labels) for label in LABELS},
        "ms": ms,
    }


def _load(router: str, profile: str) -> "Router":
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.classifiers.router import load_router
    from hopgate.models import chat

    return load_router(router, chosen_profile(router, profile, chat.resolve("auto")))


def _routes(classifier: "Router", questions: list[str], alpha: float) -> list[dict[str, Any]]:
    """Return `label`, `probs`, `alpha` and `reason` for each question."""
    found = []
    probabilities = classifier.route(questions, alpha)
    for probs, doubt in zip(probabilities, doubts(classifier, questions), strict=True):
        label, reason = choose(probs, alpha, doubt)
        found.append({"label": label, "probs": probs, "alpha": alpha, "reason": reason})
    return found


def _ms_since(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 2)


def _row(fields: dict[str, Any], line: int) -> dict[str, Any]:
    check_question(fields.get("question"))
    if "route" in fields:
        raise ValueError("the row already has the field `route`, which holds the decision")
    return fields
