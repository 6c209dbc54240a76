"""Paraphrases: files of questions that are asked in several ways, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hopgate.evaluation.asking import Question, Said
from hopgate.evaluation.gates import Asked, steadiness
from hopgate.nodes.text import check_question

FORMAT = 1
SPENT: tuple[Literal["llm_calls", "prompt_tokens", "completion_tokens"], ...] = (
    "llm_calls",
    "prompt_tokens",
    "completion_tokens",
)


class Group(NamedTuple):
    """One question in several forms.

    Attributes:
        id: Of the row; `group_LINE` where it has none. Unique within the file.
        questions: At least two forms, each once.
    """

    id: str
    questions: tuple[str, ...]

    @property
    def forms(self) -> list[Question]:
        """The forms, each by an id of its own."""
        return [Question(f"{self.id}#{at}", form) for at, form in enumerate(self.questions, 1)]


def read_groups(path: Path) -> list[Group]:
    """Reads JSONL rows `{"id", "questions": […]}` or `{"question", "paraphrases": […]}`.

    Args:
        path: The file, UTF-8. Empty lines are passed over.

    Raises:
        ValueError: If the file cannot be read, a row is bad, or there is none.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--paraphrases {path} cannot be read as text: {error}") from error
    groups: dict[str, Group] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            group = _group(line, number)
            if group.id in groups:
                raise ValueError(f"id {group.id!r} appears twice")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        groups[group.id] = group
    if not groups:
        raise ValueError(f'{path} holds no rows; write {{"id": "1", "questions": ["…", "…"]}}')
    return list(groups.values())


def _group(line: str, number: int) -> Group:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if "questions" in row:
        forms = row["questions"]
    elif "question" in row and isinstance(row.get("paraphrases"), list):
        forms = [row["question"], *row["paraphrases"]]
    else:
        raise ValueError("has neither questions nor question and paraphrases")
    if not isinstance(forms, list):
        raise ValueError("questions is no list")
    questions = tuple(check_question(form) for form in forms)
    if len(questions) < 2 or len(set(questions)) < len(questions):
        raise ValueError("needs at least two forms, each another text")
    return Group(str(row.get("id", f"group_{number}")), questions)


def document(
    data: Mapping[str, Any],
    model: str,
    groups: Sequence[Group],
    runs: Mapping[str, tuple[Mapping[str, Any], Sequence[Said]]],
) -> dict[str, Any]:
    """The content of `paraphrases.json`: plain JSON, without the questions.

    Args:
        data: `name` and `sha256` of the file.
        model: As it was resolved.
        groups: What was asked.
        runs: By the gate's spec, its settings and what it said to each form, in order.

    Returns:
        `format`, `data` (with how many `groups` and `questions`), `model`, `date`, and `runs`:
        each with `name`, `settings`, `scores` (see `hopgate.evaluation.gates.steadiness`) and
        `usage`, calls and tokens of all forms together.
    """
    counts = {"groups": len(groups), "questions": sum(len(each.questions) for each in groups)}
    return {
        "format": FORMAT,
        "data": {**data, **counts},
        "model": model,
        "date": date.today().isoformat(),
        "runs": [
            {
                "name": name,
                "settings": dict(settings),
                "scores": steadiness(_by_group(groups, said)),
                "usage": {each: sum(row[each] for row in said) for each in SPENT},
            }
            for name, (settings, said) in runs.items()
        ],
    }


def _by_group(groups: Sequence[Group], said: Sequence[Said]) -> list[list[Asked]]:
    left = iter(said)
    return [
        [Asked(row["retrieve"], row["value"]) for row in islice(left, len(group.questions))]
        for group in groups
    ]


MEASURES = {
    "flips": "groups with a flip",
    "pairs": "pairs that differ",
    "retrieve": "Yes",
    "spread": "spread",
}


def markdown(document: Mapping[str, Any]) -> str:
    """The report of `hopgate eval gate`.

    Args:
        document: The content of `paraphrases.json`.
    """
    data = document["data"]
    lines = [
        "# How much a gate's decision hangs on the wording",
        "",
        f"Model {document['model']}, {document['date']}; {data['groups']} questions of "
        f"`{data['name']}` in {data['questions']} forms. In brackets: 95% bootstrap interval over "
        "the questions.",
        "",
        "| gate | " + " | ".join(MEASURES.values()) + " |",
        "| --- |" + " ---: |" * len(MEASURES),
        *(f"| `{run['name']}` | {' | '.join(cells(run['scores']))} |" for run in document["runs"]),
        "",
        "A flip: two forms of one question get different decisions. Pairs that differ, and Yes: "
        "the share among the forms of a question, mean over questions. Spread: the highest less "
        "the lowest P(Yes) (of `draft`: uncertainty) among the forms, mean over questions.",
    ]
    return "\n".join(lines) + "\n"


def cells(scores: Mapping[str, Any]) -> list[str]:
    """Each of `MEASURES` with its interval, as it is shown."""
    return [_cell(scores[name], "{:.3f}" if name == "spread" else "{:.0%}") for name in MEASURES]


def _cell(score: Mapping[str, Any] | None, form: str) -> str:
    if score is None:
        return "–"
    low, high = (form.format(each) for each in score["interval"])
    return f"{form.format(score['value'])} ({low} to {high})"
