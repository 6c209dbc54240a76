"""`hopgate eval gate`: how often the wording of a question changes a gate's decision."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hopgate.common.errors import STATISTICS, require
from hopgate.common.files import json_bytes, read_jsonl, sha256
from hopgate.evaluation.measuring.gates import REPLIES, RESAMPLES
from hopgate.evaluation.measuring.harness import COUNTS, GateAlone, Question
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
        RuntimeError: The model failed; the message says where answers are saved.
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
    measured = []
    for run, replies in zip(
        runs, execute(runs, forms, GateAlone(), job, out / REPLIES), strict=True
    ):
        left = iter(replies)
        grouped = [[*islice(left, len(group.questions))] for group in groups]
        usage = {name: sum(each[name] for each in replies) for name in COUNTS}
        about = {"name": run.name, "settings": run.shown}
        measured.append({**about, "scores": stability(grouped), "usage": usage})
    counts = {"groups": len(groups), "questions": len(forms)}
    document = results_document(GATE, {**data, **counts}, job.model, measured)
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
    forms = row.get("questions")
    if "question" in row and isinstance(row.get("paraphrases"), list):
        forms = [row["question"], *row["paraphrases"]]
    if not isinstance(forms, list):
        raise ValueError("the row needs a list `questions`, or `question` and `paraphrases`")
    questions = tuple(check_question(form) for form in forms)
    if len(questions) < 2 or len(set(questions)) < len(questions):
        raise ValueError("a group needs at least two forms with different texts")
    return Group(str(row.get("id", f"group_{line}")), questions)


def stability(groups: Sequence[Sequence[Mapping[str, Any]]], seed: int = 0) -> dict[str, Any]:
    """Measure how much a gate's decision depends on the wording.

    Args:
        groups: For each question, at least two forms with `retrieve` and `value` (see
            `harness.GateAlone.ask`).
        seed: Seed of the resampling.

    Returns:
        Each with `value` and a 95% bootstrap `interval` over the groups: `flips` (share of groups
        in which two forms get different decisions), `pairs` (share of pairs of forms that differ,
        mean over groups), `retrieve` (share of Yes, mean over groups) and `spread` (highest value
        minus lowest, mean over the groups with values; None: the gate has none).
    """
    generator = np.random.default_rng(seed)
    measured: dict[str, list[float]] = {"flips": [], "pairs": [], "retrieve": [], "spread": []}
    for group in groups:
        count, yes = len(group), sum(each["retrieve"] for each in group)
        measured["flips"].append(float(0 < yes < count))
        measured["pairs"].append(yes * (count - yes) / math.comb(count, 2))
        measured["retrieve"].append(yes / count)
        values = [each["value"] for each in group if each["value"] is not None]
        if len(values) > 1:
            measured["spread"].append(max(values) - min(values))
    return {name: _with_interval(values, generator) for name, values in measured.items()}


def _with_interval(
    measured: Sequence[float], generator: np.random.Generator
) -> dict[str, Any] | None:
    if not measured:
        return None
    mean = float(np.mean(measured))
    if len(measured) == 1:  # nothing to resample
        return {"value": mean, "interval": [mean, mean]}
    from scipy.stats import bootstrap

    found = bootstrap(
        (measured,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=generator
    ).confidence_interval
    return {"value": mean, "interval": [float(each) for each in found]}
