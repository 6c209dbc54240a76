"""`hopgate eval gate`: how often the wording of a question changes a gate's decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopgate.common.errors import STATISTICS, require
from hopgate.common.files import json_bytes, read_jsonl, sha256
from hopgate.evaluation.measuring.gates import REPLIES, RESAMPLES
from hopgate.evaluation.measuring.harness import GateAlone, GateReply, Question
from hopgate.evaluation.measuring.runner import Job, execute, make_runs
from hopgate.evaluation.measuring.specs import parse_specs
from hopgate.evaluation.reports.output import check_folder, write_files
from hopgate.evaluation.reports.pages import render
from hopgate.evaluation.reports.results import GATE, results_document
from hopgate.nodes.texts.text import check_question

DOCUMENT, PAGE = "paraphrases.json", "paraphrases.md"


class Group(NamedTuple):
    """One question in several forms.

    Attributes:
        id: Unique within the file; `group_LINE` where the row has none.
        questions: At least two different forms.
    """

    id: str
    questions: tuple[str, ...]


class Decided(NamedTuple):
    """What a gate decided about one form of a question.

    Attributes:
        retrieve: The decision.
        value: Probability of Yes, or uncertainty; None: the gate has none.
    """

    retrieve: bool
    value: float | None


def run_paraphrases(file: Path, gates: Sequence[str], out: Path, job: Job) -> dict[str, Any]:
    """Ask gates about paraphrases and write `paraphrases.json` and `paraphrases.md`.

    Args:
        file: See `read_groups`.
        gates: Specs, see `hopgate.evaluation.measuring.specs`.
        out: Folder to write to; it is created if needed.
        job: The command's options.

    Returns:
        The content of `paraphrases.json`.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says what is saved where.
    """
    require("hopgate eval gate", *STATISTICS, "jinja2")
    check_folder(out)
    specs, groups = parse_specs(gates), read_groups(file)
    data = {"name": file.name, "sha256": sha256(file)}
    runs = make_runs(specs, out / REPLIES, job, {"data": data["sha256"]})
    forms = {
        f"{group.id}#{at}": Question(f"{group.id}#{at}", form)
        for group in groups
        for at, form in enumerate(group.questions, 1)
    }
    rows = execute(runs, forms, GateAlone(), job, out / REPLIES)
    document = results_document(
        GATE,
        {**data, "groups": len(groups), "questions": len(forms)},
        job.model,
        [
            {"name": run.name, "settings": run.shown, **_measured(groups, replies)}
            for run, replies in zip(runs, rows, strict=True)
        ],
    )
    page = render("report.md.jinja", **document).encode()
    write_files(out, {PAGE: page, DOCUMENT: json_bytes(document)})
    return document


def read_groups(path: Path) -> list[Group]:
    """Read JSONL rows `{"id", "questions": […]}` or `{"question", "paraphrases": […]}`.

    Raises:
        ValueError: The file cannot be read, has no rows, or a row is bad.
    """
    expected = 'JSONL with rows such as {"id": "1", "questions": ["…", "…"]}'
    return read_jsonl(path, _group, expected=expected, unique="id")[0]


def _group(row: dict[str, Any], line: int) -> Group:
    if "questions" in row:
        forms = row["questions"]
    elif "question" in row and isinstance(row.get("paraphrases"), list):
        forms = [row["question"], *row["paraphrases"]]
    else:
        raise ValueError("the row needs `questions`, or `question` and `paraphrases`")
    if not isinstance(forms, list):
        raise ValueError("questions is not a list")
    questions = tuple(check_question(form) for form in forms)
    if len(questions) < 2 or len(set(questions)) < len(questions):
        raise ValueError("a group needs at least two forms with different texts")
    return Group(str(row.get("id", f"group_{line}")), questions)


def _measured(groups: Sequence[Group], replies: Sequence[GateReply]) -> dict[str, Any]:
    """Return `scores`, see `stability`, and `usage`, calls and tokens of all forms together."""
    remaining = iter(Decided(each["retrieve"], each["value"]) for each in replies)
    return {
        "scores": stability([[*islice(remaining, len(group.questions))] for group in groups]),
        "usage": {
            "llm_calls": sum(each["llm_calls"] for each in replies),
            "prompt_tokens": sum(each["prompt_tokens"] for each in replies),
            "completion_tokens": sum(each["completion_tokens"] for each in replies),
        },
    }


def stability(groups: Sequence[Sequence[Decided]], seed: int = 0) -> dict[str, Any]:
    """Measure how much a gate's decision depends on the wording.

    Args:
        groups: For each question, the decisions about its forms, at least two.
        seed: Seed of the resampling.

    Returns:
        Each with `value` and a 95% bootstrap `interval` over the groups: `flips` (share of groups
        in which two forms get different decisions), `pairs` (share of pairs of forms that differ,
        mean over groups), `retrieve` (share of Yes, mean over groups) and `spread` (highest value
        minus lowest, mean over the groups with values; None: the gate has none).
    """
    generator = np.random.default_rng(seed)
    measures: dict[str, Callable[[Sequence[Decided]], float]] = {
        "flips": lambda group: float(len({each.retrieve for each in group}) > 1),
        "pairs": _differing_pairs,
        "retrieve": lambda group: sum(each.retrieve for each in group) / len(group),
        "spread": _spread,
    }
    return {
        name: _with_interval([measure(group) for group in groups], generator)
        for name, measure in measures.items()
    }


def _differing_pairs(group: Sequence[Decided]) -> float:
    yes = sum(each.retrieve for each in group)
    return yes * (len(group) - yes) / math.comb(len(group), 2)


def _spread(group: Sequence[Decided]) -> float:
    values = [each.value for each in group if each.value is not None]
    return max(values) - min(values) if len(values) > 1 else math.nan


def _with_interval(
    measured: Sequence[float], generator: np.random.Generator
) -> dict[str, Any] | None:
    known = [value for value in measured if not math.isnan(value)]
    if not known:
        return None
    mean = float(np.mean(known))
    if len(known) == 1:  # nothing to resample
        return {"value": mean, "interval": [mean, mean]}
    from scipy.stats import bootstrap

    low, high = bootstrap(
        (known,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=generator
    ).confidence_interval
    return {"value": mean, "interval": [float(low), float(high)]}
