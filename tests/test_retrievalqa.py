"""RetrievalQA's file: every published shape, and every kind of bad row."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopgate.common.files import BadRow
from hopgate.evaluation.measuring.datasets import KINDS, Example, data_summary, read_retrievalqa

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
    examples, bad = read_retrievalqa(path)
    assert (len(examples), bad) == (1, [])
    return examples[0]


# What is released


@pytest.mark.skipif(not DATA.is_file(), reason="needs RetrievalQA in ../shared/data")
def test_the_released_file_is_read_as_it_is() -> None:
    examples, bad = read_retrievalqa(DATA)
    assert (len(examples), bad) == (150, [])
    assert Counter(each.source for each in examples) == dict.fromkeys(KINDS, 30)
    for example in examples:
        assert example.question and example.golds and example.answerable is None
        assert len(example.passages) >= 5
        assert len({hit["id"] for hit in example.passages}) == len(example.passages)
        assert all(hit["title"] or hit["text"] for hit in example.passages)
    assert any(not hit["text"] for each in examples for hit in each.passages)
    assert all(not hit["title"] for e in examples if e.source == "toolqa" for hit in e.passages)


def test_passages_come_as_objects_with_and_without_text_and_as_strings(write: Write) -> None:
    context = [
        {"id": "123", "title": "One", "text": " first ", "score": "1.87"},
        {"title": "Two"},
        {"title": "Three", "text": ""},
        "a plain text",
        {"text": "no title"},
        {"title": None, "text": "null title"},
    ]
    example = only(write({"context": context}))
    assert [(hit["title"], hit["text"]) for hit in example.passages] == [
        ("One", "first"),
        ("Two", ""),
        ("Three", ""),
        ("", "a plain text"),
        ("", "no title"),
        ("", "null title"),
    ]
    assert [hit["score"] for hit in example.passages] == [1 / rank for rank in range(1, 7)]


def test_empty_and_repeated_passages_are_left_out(write: Write) -> None:
    context = ["same", {"title": "", "text": ""}, " ", {}, {"text": "same"}, "other"]
    example = only(write({"context": context}))
    assert [(hit["text"], hit["score"]) for hit in example.passages] == [
        ("same", 1),
        ("other", 0.5),
    ]


def test_a_passage_s_id_depends_on_its_content_alone(write: Write) -> None:
    (one,) = only(write({"context": ["text"]})).passages
    _, other = only(write({"context": ["before", "text"], "question_id": "x"})).passages
    assert one["id"] == other["id"]


def test_a_question_may_have_no_passages(write: Write) -> None:
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
    assert [each.id for each in read_retrievalqa(path)[0]] == ["popqa_1", "popqa_3", "7"]


def test_byte_order_mark_empty_lines_and_windows_line_ends_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps(ROW).encode() + b"\r\n\r\n")
    assert only(path).id == "popqa_1"


def test_a_line_separator_inside_a_text_ends_no_line(write: Write) -> None:
    row = json.dumps(ROW | {"question": "Who\u2028keeps\x85it?"}, ensure_ascii=False).encode()
    assert only(write(row)).question == "Who\u2028keeps\x85it?"


def test_half_characters_in_passages_are_replaced(write: Write) -> None:
    (hit,) = only(write({"context": [{"title": "a\ud83d", "text": "\ude00b"}]})).passages
    assert (hit["title"], hit["text"]) == ("a\ufffd", "\ufffdb")


# Bad rows


BAD: list[tuple[dict[str, Any] | bytes, str]] = [
    ({"question": "left out"}, "question is missing"),
    ({"ground_truth": "left out"}, "ground_truth is missing"),
    ({"context": "left out"}, "context is missing"),
    ({"data_source": "left out"}, "data_source is missing"),
    ({"question": "  "}, "question is '  '"),
    ({"question": None}, "question is None"),
    ({"question": "half \ud800"}, "question contains half of a character"),
    ({"question_id": ""}, "question_id is ''"),
    ({"question_id": True}, "question_id is True"),
    ({"question_id": "popqa_1"}, "id 'popqa_1' appears twice"),
    ({"ground_truth": []}, "empty list"),
    ({"ground_truth": "[]"}, "empty list"),
    ({"ground_truth": ["the", "?!", ""]}, "only articles and punctuation"),
    ({"ground_truth": "   "}, "only articles and punctuation"),
    ({"ground_truth": [1858]}, "ground_truth is [1858]"),
    ({"ground_truth": None}, "ground_truth is None"),
    ({"ground_truth": {"a": 1}}, "must list strings"),
    ({"ground_truth": ["ok", "\udfff"]}, "ground_truth contains half of a character"),
    ({"context": None}, "context is None"),
    ({"context": "text"}, "context is 'text'"),
    ({"context": [7]}, "a passage of context is 7"),
    ({"context": [{"text": ["a"]}]}, "title and text"),
    ({"param_knowledge_answerable": "yes"}, "param_knowledge_answerable is 'yes'"),
    ({"param_knowledge_answerable": 2}, "param_knowledge_answerable is 2"),
    (b'{"question": "cut', "not JSON"),
    (b"[1]", "not a JSON object"),
    (b"null", "not a JSON object"),
    (b"\xff\xfe", "not UTF-8"),
    (b"[" * 100_000, "not JSON"),
    (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
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
    assert "--skip-bad-rows" in message and "\n" not in message and len(message) < 400
    message.encode()
    examples, bad = read_retrievalqa(path, skip_bad=True)
    assert [each.id for each in examples] == ["popqa_1", "popqa_3"]
    assert [each.line for each in bad] == [3] and reason in bad[0].reason


def test_the_number_of_bad_rows_is_reported(write: Write) -> None:
    path = write({}, {"question": ""}, b"{", {"question": None})
    with pytest.raises(ValueError, match=r":2: question is ''.*2 more bad rows"):
        read_retrievalqa(path)
    assert len(read_retrievalqa(path, skip_bad=True)[1]) == 3


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_without_questions_is_refused(write: Write, skip_bad: bool) -> None:
    with pytest.raises(ValueError, match=r"data.jsonl has no usable rows"):
        read_retrievalqa(write(b"", b"  "), skip_bad)


def test_a_file_of_only_bad_rows_is_refused(write: Write) -> None:
    with pytest.raises(
        ValueError,
        match=r"data.jsonl:1: not a JSON object \(1 more bad rows follow\); correct the file",
    ):
        read_retrievalqa(write(b"1", b"2"), skip_bad=True)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(ValueError, match="does not exist or is not a file"):
            read_retrievalqa(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*ROW, "param_knowledge_answerable"]), JSON))
def test_any_row_is_either_read_or_bad(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    rows = [ROW | {"question_id": "good"}, ROW | fields]
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    examples, bad = read_retrievalqa(path, skip_bad=True)
    assert len(examples) + len(bad) == 2
    assert all(isinstance(each, BadRow) and each.line == 2 for each in bad)
    json.dumps([each._asdict() for each in examples]).encode()


def test_the_summary_of_data_names_the_file_and_its_hash(write: Write) -> None:
    path = write({})
    assert data_summary(path, rows=1, bad_rows=2) == {
        "name": "data.jsonl",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "rows": 1,
        "bad_rows": 2,
    }
