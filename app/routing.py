"""The router on its own, for `hopgate route`: one question, or a file of them."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopgate.nodes.route import choose as decide
from hopgate.nodes.route import doubts
from hopgate.nodes.text import check_question

BATCH = 256


def route_one(question: str, alpha: float, router: str, profile: str) -> dict[str, Any]:
    """Route one question.

    Returns:
        `label`, `probs` of A, B and C, `alpha`, `profile`, `reason`, and `ms`, the time of the
        decision alone.
    """
    question = check_question(question)
    classifier = _load(router, profile)
    started = time.perf_counter()
    (probs,) = classifier.route([question], alpha)
    ms = (time.perf_counter() - started) * 1000
    label, reason = decide(probs, alpha, doubts(classifier, [question])[0])
    return {
        "label": label,
        "probs": probs,
        "alpha": alpha,
        "profile": classifier.profile,
        "reason": reason,
        "ms": round(ms, 2),
    }


def route_file(
    source: Path,
    target: Path,
    alpha: float,
    router: str,
    profile: str,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Route every row of a JSONL file; rows keep all their fields and gain `route`.

    `route` holds `label`, `probs` of A, B and C, `alpha` and `reason`. The output appears
    when it is complete.

    Args:
        source: JSONL rows with `question` and without `route`.
        target: JSONL to write, in a folder that is there; an existing file is replaced.
        alpha: 0 cheapest to 1 most reliable.
        router: Folder of the router's weights, or `builtin`.
        profile: Which LLM's outcomes the router follows, or `auto`.
        advance: Called with how many rows are done, and the total.

    Returns:
        `output`, `rows`, `alpha`, `profile`, the share of each label, and `ms`, the time of all
        decisions.

    Raises:
        ValueError: The file is missing, empty or not UTF-8, a row has no question or has `route`
            already (names the line), or `target` cannot be a file.
    """
    _check_target(target)
    rows = _read(source)
    classifier = _load(router, profile)
    labels: list[str] = []
    started = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        questions = [check_question(row["question"]) for row in batch]
        routed = zip(
            batch, classifier.route(questions, alpha), doubts(classifier, questions), strict=True
        )
        for row, probs, doubt in routed:
            label, reason = decide(probs, alpha, doubt)
            labels.append(label)
            row["route"] = {"label": label, "probs": probs, "alpha": alpha, "reason": reason}
        advance(len(labels), len(rows))
    ms = (time.perf_counter() - started) * 1000
    _write(target, rows)
    return {
        "output": str(target),
        "rows": len(rows),
        "alpha": alpha,
        "profile": classifier.profile,
        "shares": {label: labels.count(label) / len(labels) for label in "ABC"},
        "ms": round(ms, 2),
    }


def _load(router: str, profile: str) -> Any:
    from hopgate.classifiers.profiles import chosen_profile
    from hopgate.classifiers.router import load_router
    from hopgate.models import chat

    return load_router(router, chosen_profile(router, profile, chat.resolve("auto")))


def _check_target(target: Path) -> None:
    if target.exists() and not target.is_file():
        raise ValueError(f"--output {target} is not a file: name a file to write")
    if not target.parent.is_dir():
        raise ValueError(f"--output {target}: there is no folder {target.parent}; create it first")


def _read(source: Path) -> list[dict[str, Any]]:
    if not source.is_file():
        raise ValueError(f"--input {source}: there is no such file")
    try:
        text = source.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"--input {source} is not UTF-8 ({error.reason}, byte {error.start}): save it as UTF-8"
        ) from error
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(_row(line))
            except ValueError as error:
                raise ValueError(f"{source}, line {number}: {error}; correct the line") from error
    if not rows:
        raise ValueError(f"--input {source}: the file has no rows")
    return rows


def _row(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    check_question(row.get("question"))
    if "route" in row:
        raise ValueError("it has the field `route`, where the decision goes")
    return row


def _write(target: Path, rows: list[dict[str, Any]]) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        # A lone surrogate, legal in JSON as \ud800, is written as it came: escaped.
        with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
