"""RetrievalQA's file: every published shape, and every kind of bad row."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopgate.evaluation.measuring.datasets import KINDS, Example, read_retrievalqa

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "retrievalqa" / "dev.jsonl"
ROW = {
    "data_source": "popqa",
    "question_id": "popqa_1",
    "question": "Who keeps Skerrane Light?",
    "ground_truth": ["Ada Orne", "Orne"],
    "context": [{"title": "Skerrane Light", "text": "Ada Orne keeps it."}],
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows, given as fields to change in `ROW` or as bytes."""

    def write(*rows: dict[str, Any] | bytes, name: str = "data.jsonl") -> Path:
        lines = [
            row
            if isinstance(row, bytes)
            else json.dumps({k: v for k, v in (ROW | row).items() if v != "left out"}).encode()
            for row in rows
        ]
        path = tmp_path / name
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    return write


def only(path: Path) -> Example:
    (example,) = read_retrievalqa(path)
    return example


# What is released


@pytest.mark.skipif(not DATA.is_file(), reason="needs RetrievalQA in ../shared/data")
def test_the_released_file_is_read_as_it_is() -> None:
    examples = read_retrievalqa(DATA)
    assert Counter(each.source for each in examples) == dict.fromkeys(KINDS, 30)
    for example in examples:
        assert example.question and example.golds and example.answerable is None
        assert len(example.passages) >= 5
        assert len({hit["id"] for hit in example.passages}) == len(example.passages)
        assert all(hit["title"] or hit["text"] for hit in example.passages)
    assert any(not hit["text"] for each in examples for hit in each.passages)
    assert all(not hit["title"] for e in examples if e.source == "toolqa" for hit in e.passages)


def test_passages_come_as_objects_or_strings_without_empty_and_repeated_ones(write: Write) -> None:
    context = [
        {"id": "123", "title": "One", "text": " first ", "score": "1.87"},
        {"title": "Two"},
        {"title": "Three", "text": ""},
        "a plain text",
        {"text": "no title"},
        {"title": None, "text": "null title"},
        {"text": "no title"},
        {"title": "", "text": ""},
        " ",
        {},
        {"title": "a\ud83d", "text": "\ude00b"},
    ]
    example = only(write({"context": context}))
    assert [(hit["title"], hit["text"]) for hit in example.passages] == [
        ("One", "first"),
        ("Two", ""),
        ("Three", ""),
        ("", "a plain text"),
        ("", "no title"),
        ("", "null title"),
        ("a\ufffd", "\ufffdb"),
    ]
    assert [hit["score"] for hit in example.passages] == [1 / rank for rank in range(1, 8)]
    assert only(write({"context": []})).passages == ()


@pytest.mark.parametrize(
    ("golds", "expected"),
    [
        (["Ada", "Orne"], ("Ada", "Orne")),
        ('["Ada", "Orne"]', ("Ada", "Orne")),
        ("Ada Orne", ("Ada Orne",)),
        ("1858", ("1858",)),
        ("[1858]", ("[1858]",)),
        (["The", "The Who"], ("The", "The Who")),
    ],
)
def test_golds_are_a_list_a_list_in_a_string_or_one_answer(
    write: Write, golds: Any, expected: tuple[str, ...]
) -> None:
    assert only(write({"ground_truth": golds})).golds == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, False), (1, True), (False, False), (True, True), (None, None), ("left out", None)],
)
def test_answerable_is_read_if_present(write: Write, value: Any, expected: bool | None) -> None:
    assert only(write({"param_knowledge_answerable": value})).answerable is expected


def test_a_missing_id_is_made_from_source_and_line(write: Write) -> None:
    path = write({}, b"", {"question_id": "left out"}, {"question_id": 7})
    assert [each.id for each in read_retrievalqa(path)] == ["popqa_1", "popqa_3", "7"]


# Bad rows


BAD: list[tuple[dict[str, Any] | bytes, str]] = [
    ({"question": "left out"}, "question is missing"),
    ({"ground_truth": "left out"}, "answers are missing; give ground_truth"),
    ({"data_source": "left out"}, "data_source is missing"),
    ({"question": "  "}, "question is '  '"),
    ({"question": "half \ud800"}, "question contains half of a character"),
    ({"question_id": True}, "question_id is True"),
    ({"question_id": "popqa_1"}, "id 'popqa_1' appears twice"),
    ({"ground_truth": []}, "ground_truth is []"),
    ({"ground_truth": "[]"}, "ground_truth is '[]'"),
    ({"ground_truth": ["the", "?!", ""]}, "more than articles and punctuation"),
    ({"ground_truth": [1858]}, "ground_truth is [1858]"),
    ({"ground_truth": {"a": 1}}, "it must list texts"),
    ({"ground_truth": ["ok", "\udfff"]}, "ground_truth contains half of a character"),
    ({"context": None}, "context is None"),
    ({"context": "text"}, "context is 'text'"),
    ({"context": [7]}, "a passage of context is 7"),
    ({"context": [{"text": ["a"]}]}, "title and text"),
    ({"param_knowledge_answerable": 2}, "param_knowledge_answerable is 2"),
    (b'{"question": "cut', "not JSON"),
]


@pytest.mark.parametrize(("row", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_row_is_named_with_line_and_reason(
    write: Write, row: dict[str, Any] | bytes, reason: str
) -> None:
    if isinstance(row, dict):
        row = {"question_id": "popqa_2"} | row
    path = write({}, b"", row, {"question_id": "popqa_3"})
    with pytest.raises(ValueError) as caught:
        read_retrievalqa(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: ") and reason in message
    assert "\n" not in message and len(message) < 400
    message.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.sampled_from([*ROW, "param_knowledge_answerable"]), JSON))
def test_any_row_is_either_read_or_bad(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    rows = [ROW | {"question_id": "good"}, ROW | fields]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    try:
        json.dumps([each._asdict() for each in read_retrievalqa(path)]).encode()
    except ValueError as error:
        assert str(error).startswith(f"{path}:2: ")
