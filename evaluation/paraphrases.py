"""`hopgate eval gate`: how often the wording of a question changes a gate's decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.extras import STATISTICS, require
from hopgate.common.files import json_bytes, read_jsonl, sha256
from hopgate.evaluation.gates import REPLIES, Decided, gate_runs, stability
from hopgate.evaluation.harness import GateAlone, GateReply, Question
from hopgate.evaluation.output import check_folder, write_files
from hopgate.evaluation.pages import code, table
from hopgate.evaluation.runner import Job, execute
from hopgate.evaluation.specs import parse_specs
from hopgate.nodes.text import check_question

FORMAT = 1
DOCUMENT, PAGE = "paraphrases.json", "paraphrases.md"
MEASURES = {
    "flips": "groups with a flip",
    "pairs": "pairs that differ",
    "retrieve": "Yes",
    "spread": "spread",
}


class Group(NamedTuple):
    """One question in several forms.

    Attributes:
        id: Unique within the file; `group_LINE` where the row has none.
        questions: At least two different forms.
    """

    id: str
    questions: tuple[str, ...]

    @property
    def forms(self) -> list[Question]:
        """The forms, each with an id of its own."""
        return [Question(f"{self.id}#{at}", form) for at, form in enumerate(self.questions, 1)]


def run_paraphrases(file: Path, gates: Sequence[str], out: Path, job: Job) -> dict[str, Any]:
    """Ask gates about paraphrases and write `paraphrases.json` and `paraphrases.md`.

    Args:
        file: See `read_groups`.
        gates: Specs, see `hopgate.evaluation.specs`.
        out: Folder to write to; it is created if needed.
        job: The command's options.

    Returns:
        The content of `paraphrases.json`.

    Raises:
        ValueError: An input is wrong, or earlier answers were made with other settings.
        RuntimeError: The model failed; the message says what is saved where.
    """
    require("hopgate eval gate", *STATISTICS)
    check_folder(out)
    specs, groups = parse_specs(gates), read_groups(file)
    data = {"name": file.name, "sha256": sha256(file)}
    runs = gate_runs(specs, out / REPLIES, job, {"data": data["sha256"]})
    forms = {form.id: form for group in groups for form in group.forms}
    rows = execute(runs, forms, GateAlone(), job, out / REPLIES)
    counts = {"groups": len(groups), "questions": len(forms)}
    document = {
        "format": FORMAT,
        "data": {**data, **counts},
        "model": job.model,
        "date": date.today().isoformat(),
        "runs": [
            {"name": run.name, "settings": run.shown, **_measured(groups, replies)}
            for run, replies in zip(runs, rows, strict=True)
        ],
    }
    write_files(out, {PAGE: page(document).encode(), DOCUMENT: json_bytes(document)})
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
    return {
        "scores": stability(_by_group(groups, replies)),
        "usage": {
            "llm_calls": sum(each["llm_calls"] for each in replies),
            "prompt_tokens": sum(each["prompt_tokens"] for each in replies),
            "completion_tokens": sum(each["completion_tokens"] for each in replies),
        },
    }


def _by_group(groups: Sequence[Group], replies: Sequence[GateReply]) -> list[list[Decided]]:
    remaining = iter(replies)
    return [
        [Decided(each["retrieve"], each["value"]) for each in islice(remaining, len(group.forms))]
        for group in groups
    ]


def page(document: Mapping[str, Any]) -> str:
    """Return the content of `paraphrases.md`.

    Args:
        document: The content of `paraphrases.json`.
    """
    data, runs = document["data"], document["runs"]
    return "\n\n".join(
        [
            "# How much a gate's decision depends on the wording",
            f"Model {document['model']}, {document['date']}; {data['groups']} questions of "
            f"{code(data['name'])} in {data['questions']} forms. In brackets: 95% bootstrap "
            "interval over the questions.",
            table(
                ("gate", *MEASURES.values()),
                ([code(run["name"]), *cells(run["scores"])] for run in runs),
            ),
            "A flip: two forms of one question get different decisions. Pairs that differ, and "
            "Yes: the share among the forms of a question, mean over questions. Spread: the "
            "highest minus the lowest P(Yes) (for `draft`: uncertainty) among the forms, mean "
            "over questions.\n",
        ]
    )


def cells(scores: Mapping[str, Any]) -> list[str]:
    """Return each of `MEASURES` with its interval, as it is shown."""
    return [_cell(scores[name], "{:.3f}" if name == "spread" else "{:.0%}") for name in MEASURES]


def _cell(score: Mapping[str, Any] | None, form: str) -> str:
    if score is None:
        return "–"
    low, high = (form.format(each) for each in score["interval"])
    return f"{form.format(score['value'])} ({low} to {high})"
