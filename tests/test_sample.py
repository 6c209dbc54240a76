"""The sample collection: its form, and what the real encoder finds in it."""

import json
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from hopgate.retrievers.index.reader import Index, load_index
from hopgate.retrievers.index.verifying import verify
from hopgate.retrievers.sources import sample_path

SAMPLE = Path(str(files("hopgate.retrievers"))) / "sample"


def _rows(name: str) -> list[dict[str, Any]]:
    lines = (SAMPLE / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


PASSAGES = {row["title"]: row["text"] for row in _rows("passages.jsonl")}
QUESTIONS = _rows("questions.jsonl")
FOLLOW_UPS = _rows("follow_ups.jsonl")


def _of(strategy: str) -> list[dict[str, Any]]:
    return [row for row in QUESTIONS if row["strategy"] == strategy]


def _holds(titles: list[str], answer: str) -> bool:
    return any(answer in PASSAGES[title] for title in titles)


@pytest.fixture(scope="module")
def index() -> Index:
    """The index that ships with the package."""
    return load_index(sample_path())


def test_the_index_holds_the_passages_and_nothing_else(index: Index) -> None:
    (hits,) = index.search(["lighthouse"], k=len(PASSAGES) + 1, mode="dense")
    assert {hit["title"]: hit["text"] for hit in hits} == PASSAGES
    assert verify(sample_path()).problems == []


def test_questions_cover_the_three_strategies_without_repeats() -> None:
    sizes = {"none": {0}, "single": {1}, "multi": {2, 3}}
    counts = Counter(row["strategy"] for row in QUESTIONS)
    assert set(counts) == set(sizes)
    assert min(counts.values()) >= 12
    for key in ("id", "question"):
        assert len({row[key] for row in QUESTIONS}) == len(QUESTIONS)
    fields = {"id", "question", "answers", "strategy", "titles"}
    assert all(set(row) == fields for row in QUESTIONS)
    assert all(len(row["titles"]) in sizes[row["strategy"]] for row in QUESTIONS)


def test_every_answer_is_short_and_stands_in_a_supporting_passage() -> None:
    assert all(row["answers"] for row in QUESTIONS)
    assert all(len(answer.split()) <= 4 for row in QUESTIONS for answer in row["answers"])
    missing = [
        (row["id"], answer)
        for row in QUESTIONS
        if row["strategy"] != "none"
        for answer in row["answers"]
        if not _holds(row["titles"], answer)
    ]
    assert missing == []


def test_bridge_passages_name_the_next_one_and_only_the_last_answers() -> None:
    for row in _of("multi"):
        *bridges, last = row["titles"]
        if last in row["question"]:
            continue  # a comparison: both sides are named in the question
        for passage, following in zip(bridges, row["titles"][1:], strict=True):
            assert following.lower() in PASSAGES[passage].lower(), row["id"]
        assert not any(_holds(bridges, answer) for answer in row["answers"]), row["id"]
        assert any(_holds([last], answer) for answer in row["answers"]), row["id"]


def test_follow_ups_are_answered_by_their_passages() -> None:
    assert len(FOLLOW_UPS) >= 3
    for row in FOLLOW_UPS:
        for answer in row["answers"] + row["follow_up_answers"]:
            assert _holds(row["titles"], answer), (row["id"], answer)
        named = row["titles"][0]
        assert named in row["question"]
        assert named in row["standalone"]
        assert named not in row["follow_up"]


def test_what_a_retrieval_finds(index: Index) -> None:
    def found(queries: list[str], k: int) -> list[list[str]]:
        return [[hit["title"] for hit in hits] for hits in index.search(queries, k)]

    single = [(row["question"], row["titles"]) for row in _of("single")]
    single += [(row["standalone"], row["titles"]) for row in FOLLOW_UPS]
    assert found([question for question, _ in single], 1) == [titles for _, titles in single]
    multi = _of("multi")
    firsts = found([row["question"] for row in multi], 5)
    lasts = found([row["titles"][-1] for row in multi], 3)
    complete = 0
    for row, first, last in zip(multi, firsts, lasts, strict=True):
        assert row["titles"][0] in first[:3], row["id"]
        assert row["titles"][-1] in last, row["id"]
        complete += set(row["titles"]) <= set(first)
    assert complete <= len(multi) / 2
