"""Files: reading JSON lines, atomic writes, and JSON that can always be written."""

import json
import os
import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopgate.common.files import (
    atomic_write,
    json_bytes,
    json_line,
    parse_object,
    read_json,
    read_jsonl,
    required_text,
    sha256,
    shown,
    write_atomic,
)


class Item(NamedTuple):
    id: str
    line: int


def parse(fields: dict[str, Any], line: int) -> Item | None:
    if fields.get("skip"):
        return None
    return Item(required_text(fields, "id"), line)


def read(path: Path, **options: Any) -> list[Item]:
    return read_jsonl(path, parse, expected="a file of items", **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "items.jsonl"


# Reading JSON lines


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n \t\n"])
def test_rows_are_read_with_their_line_numbers(path: Path, end: bytes) -> None:
    path.write_bytes(b'\xef\xbb\xbf{"id": "a"}\r\n\n  \n{"skip": true}\n {"id": "\xc3\xa4"}' + end)
    assert read(path) == [Item("a", 1), Item("ä", 5)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", r"not JSON \(Expecting property name .* at column 2\)"),
        (b"[" * 100_000, r"not JSON \(.*recursion"),
        (b'{"id": "caf\xe9"}', r"not JSON \(.*invalid continuation byte"),
        (b"[]", "not a JSON object"),
        (b"{}", "id is missing"),
        (b'{"id": " "}', "id is ' '; it must be a non-empty string"),
        (b'{"id": 7}', "id is 7; it must be a non-empty string"),
        (b'{"id": "a\\ud800"}', "id contains half of a character"),
        (b'{"id": "first"}', "id 'first' appears twice"),
    ],
)
def test_a_bad_line_is_reported_with_path_and_line(path: Path, line: bytes, reason: str) -> None:
    path.write_bytes(b'{"id": "first"}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=reason) as caught:
        read(path, unique="id")
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n", b'{"skip": true}\n'])
def test_a_file_without_rows_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"has no usable rows; give a file of items"):
        read(path)


@pytest.mark.parametrize("name", ["missing.jsonl", ".", "nul\0"])
def test_a_path_that_is_not_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="does not exist or cannot be read; give a file of items"):
        read(tmp_path / name)


@given(st.binary())
def test_any_line_is_an_object_or_an_error(line: bytes) -> None:
    try:
        assert isinstance(parse_object(line), dict)
    except ValueError as error:
        assert str(error).startswith("not ")


# Reading one JSON document


def test_a_json_document_is_read_with_or_without_a_byte_order_mark(path: Path) -> None:
    for start in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(start + b'{"a": 1}')
        assert read_json(path, "--prices") == {"a": 1}


@pytest.mark.parametrize("content", [b"\xff", b"[]", None])
def test_a_bad_json_document_names_the_option(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^--prices {path} cannot be read: "):
        read_json(path, "--prices")


# Writing


def test_an_atomic_write_creates_or_replaces_a_file(path: Path) -> None:
    for content in (b"old", b"new"):
        write_atomic(path, content)
        assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("old", [b"old", None])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_partial_one(
    path: Path, old: bytes | None
) -> None:
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(ZeroDivisionError), atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert (path.read_bytes() if path.exists() else None) == old
        raise ZeroDivisionError
    assert (path.read_bytes() if path.exists() else None) == old
    assert [each.name for each in path.parent.iterdir()] == ([path.name] if old else [])


def test_content_reaches_the_disk_before_the_file_gets_its_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def logged_fsync(descriptor: int) -> None:
        steps.append(f"fsync {os.fstat(descriptor)[stat.ST_SIZE]}")
        fsync(descriptor)

    def logged_replace(self: Path, target: Path) -> Path:
        steps.append("replace")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(Path, "replace", logged_replace)
    write_atomic(path, b"12345")
    assert steps == ["fsync 5", "replace"]


JSON_TEXT = st.text(st.characters(codec=None))  # lone surrogates included


@given(JSON_TEXT)
def test_any_text_can_be_written_as_json(text: str) -> None:
    line = json_line({"text": text})
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    for written in (line, json_bytes({"text": text})):
        assert json.loads(written.decode("utf-8")) == {"text": text}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_without_a_json_form_are_refused(number: float) -> None:
    for write in (json_line, json_bytes):
        with pytest.raises(ValueError, match="JSON compliant"):
            write({"number": number})


# Helpers


def test_a_long_value_is_shortened_for_messages() -> None:
    assert shown("x" * 58) == f"'{'x' * 58}'"
    assert shown("x" * 59) == f"'{'x' * 56}…"


def test_a_files_sha_256(path: Path) -> None:
    path.write_bytes(b"abc")
    assert sha256(path).startswith("ba7816bf8f01cfea")
    with pytest.raises(ValueError, match=r"cannot be read: Is a directory"):
        sha256(path.parent)
