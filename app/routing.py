"""The router on its own, for `hopgate route`: one question, or a file of them."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hopgate.nodes.condense import check_question
from hopgate.nodes.route import likeliest

BATCH = 256


def route_one(question: str, alpha: float, router: str) -> dict[str, Any]:
    """Route one question.

    Returns:
        `label`, `probs` of A, B and C, `alpha`, and `ms`, the time of the decision alone.
    """
    question = check_question(question)
    classifier = _load(router)
    started = time.perf_counter()
    (probs,) = classifier.route([question], alpha)
    ms = (time.perf_counter() - started) * 1000
    return {"label": likeliest(probs), "probs": probs, "alpha": alpha, "ms": round(ms, 2)}


def route_file(
    source: Path,
    target: Path,
    alpha: float,
    router: str,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Route every row of a JSONL file; rows keep their fields and gain label, probs, alpha.

    The output appears when it is complete.

    Args:
        source: JSONL rows with `question`.
        target: JSONL to write; an existing file is replaced.
        alpha: 0 cheapest to 1 most reliable.
        router: Folder of the router's weights, or `builtin`.
        advance: Called with how many rows are done, and the total.

    Returns:
        `output`, `rows`, `alpha`, the share of each label, and `ms`, the time of all decisions.

    Raises:
        ValueError: The file is missing or empty, or a row has no question; names the line.
    """
    rows = _read(source)
    classifier = _load(router)
    started = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        for row, probs in zip(
            batch, classifier.route([row["question"] for row in batch], alpha), strict=True
        ):
            row |= {"label": likeliest(probs), "probs": probs, "alpha": alpha}
        advance(first + len(batch), len(rows))
    ms = (time.perf_counter() - started) * 1000
    _write(target, rows)
    labels = [row["label"] for row in rows]
    return {
        "output": str(target),
        "rows": len(rows),
        "alpha": alpha,
        "shares": {label: labels.count(label) / len(labels) for label in "ABC"},
        "ms": round(ms, 2),
    }


def _load(router: str) -> Any:
    from hopgate.classifiers import load_router

    return load_router() if router == "builtin" else load_router(router)


def _read(source: Path) -> list[dict[str, Any]]:
    if not source.is_file():
        raise ValueError(f"--input {source}: there is no such file")
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row["question"] = check_question(row.get("question"))
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{source}, line {number}: {error}; correct the line") from error
        rows.append(row)
    if not rows:
        raise ValueError(f"--input {source}: the file has no rows")
    return rows


def _write(target: Path, rows: list[dict[str, Any]]) -> None:
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
