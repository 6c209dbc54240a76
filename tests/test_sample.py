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


def _found(index: Index, queries: list[str], k: int) -> list[list[str]]:
    return [[hit["title"] for hit in hits] for hits in index.search(queries, k)]


def test_passages_are_many_short_and_titled_once() -> None:
    rows = _rows("passages.jsonl")
    assert len(rows) >= 72
    assert len(PASSAGES) == len(rows)
    assert all(set(row) == {"title", "text"} for row in rows)
    outside = {t: n for t, text in PASSAGES.items() if not 40 <= (n := len(text.split())) <= 70}
    assert outside == {}


def test_the_index_holds_the_passages_and_nothing_else(index: Index) -> None:
    (hits,) = index.search(["lighthouse"], k=len(PASSAGES) + 1, mode="dense")
    assert {hit["title"]: hit["text"] for hit in hits} == PASSAGES
    assert verify(sample_path()).problems == []


def test_questions_cover_the_three_strategies_without_repeats() -> None:
    counts = Counter(row["strategy"] for row in QUESTIONS)
    assert set(counts) == {"none", "single", "multi"}
    assert min(counts.values()) >= 12
    for key in ("id", "question"):
        assert len({row[key] for row in QUESTIONS}) == len(QUESTIONS)
    fields = {"id", "question", "answers", "strategy", "titles"}
    assert all(set(row) == fields for row in QUESTIONS)


def test_strategy_agrees_with_the_number_of_supporting_passages() -> None:
    sizes = {"none": {0}, "single": {1}, "multi": {2, 3}}
    assert [r["id"] for r in QUESTIONS if len(r["titles"]) not in sizes[r["strategy"]]] == []


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


def test_one_retrieval_finds_the_passage_of_a_single_question(index: Index) -> None:
    rows = _of("single") + [
        {"question": row["standalone"], "titles": row["titles"]} for row in FOLLOW_UPS
    ]
    found = _found(index, [row["question"] for row in rows], k=1)
    assert found == [row["titles"] for row in rows]


def test_each_hop_of_a_multi_question_is_found_by_its_own_query(index: Index) -> None:
    rows = _of("multi")
    first = _found(index, [row["question"] for row in rows], k=3)
    last = _found(index, [row["titles"][-1] for row in rows], k=3)
    assert [
        r["id"] for r, hits in zip(rows, first, strict=True) if r["titles"][0] not in hits
    ] == []
    assert [
        r["id"] for r, hits in zip(rows, last, strict=True) if r["titles"][-1] not in hits
    ] == []


def test_one_retrieval_misses_support_for_most_multi_questions(index: Index) -> None:
    rows = _of("multi")
    found = _found(index, [row["question"] for row in rows], k=5)
    complete = [
        r["id"] for r, hits in zip(rows, found, strict=True) if set(r["titles"]) <= set(hits)
    ]
    assert len(complete) < len(rows) / 2
