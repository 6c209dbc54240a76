"""No text, name or error that the command line prints can command the terminal."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, in_terminal, run_process
from doubles import by_task
from fake_openai import FakeOpenAI, Messages, Reply
from hypothesis import given
from hypothesis import strategies as st
from indexing import edit_manifest

from hopgate.retrievers.building import build_index
from hopgate.terminal import pages
from hopgate.terminal.guard import harmless, harmless_json

DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
C1 = "".join(map(chr, range(0x80, 0xA0)))
TITLE = "\x1b]0;owned\x07"
ATTACK = f"\x1b[2J{TITLE}\x9b2J\x9d0;owned\x9c\u202ea\rb\x7fc\x08\u2028d"
"""Clears the screen and names the window, in both ways; turns text around; goes back."""
NAME = f"schön {ATTACK}"
EVERY = "".join(map(chr, range(1, 32))) + "\x7f" + C1 + DIRECTIONS
SAFE = ("\n", "\t")


def raw(text: str) -> list[str]:
    """Return the control characters in a text, and what changes its direction."""
    return [
        each
        for each in text
        if (unicodedata.category(each) in ("Cc", "Zl", "Zp", "Cs") and each not in SAFE)
        or each in DIRECTIONS
    ]


def clean(ran: Ran, *, code: int | None = None, shown: bool = True) -> str:
    """Assert that a command sent no control character and showed some; return all it printed."""
    printed = ran.out + ran.err
    assert code is None or ran.code == code, ran
    assert raw(printed) == [], printed
    assert not shown or re.search(r"\\(x1b|u001b|u009b|u202e|x9b)", printed), printed
    return printed


# The one place


@given(st.text())
def test_every_text_becomes_harmless_and_stays_readable(text: str) -> None:
    shown = harmless(text)
    assert raw(shown) == []
    assert harmless(shown) == shown
    assert raw(harmless(text, lines=False)) == []
    assert not set(harmless(text, lines=False)) & set(SAFE)
    if not raw(text):
        assert shown == text


@given(st.dictionaries(st.text(), st.text() | st.lists(st.text())))
def test_json_stays_json(document: dict[str, Any]) -> None:
    line = harmless_json(json.dumps(document, ensure_ascii=False))
    assert raw(line) == []
    assert json.loads(line) == document


def test_whatever_prints_is_harmless(capfd: pytest.CaptureFixture[str]) -> None:
    pages.out.print(f"[bold]rich[/] {EVERY}")
    pages.note(f"note {EVERY}")
    printed = clean(Ran(0, *capfd.readouterr()))
    for name in ("rich", "note"):
        assert re.search(rf"{name} .*\\x1b", printed.replace("\n", " ")), name


def harmful(shown: str) -> list[str]:
    """Return what of an attack reached a terminal, where rich's own sequences are too."""
    return [each for each in ("\x1b[2J", "\x1b]", "\x07", "\x7f", "\x08") if each in shown] + [
        each for each in shown if each in C1 + DIRECTIONS + "\u2028"
    ]


# Commands


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """A folder of files with hostile names, among them files that cannot be read."""
    folder = tmp_path / f"docs {ATTACK}"
    folder.mkdir()
    (folder / f"a {NAME}\nfake: line.md").write_text(f"# {NAME}\n\nThe canteen {EVERY} closes.")
    (folder / f"b {ATTACK}.md").write_text("The canteen opens at nine, on every day of the week.")
    (folder / f"c {ATTACK}.pdf").write_bytes(b"no pdf")
    (folder / f"d {ATTACK}.jsonl").write_text('{"text": "x"}\nno json\n')
    (folder / f"e.{ATTACK}").write_text("of an unknown type")
    (folder / "f\udc9b.md").write_text("A name that is not UTF-8.")
    return folder


@pytest.fixture
def index(documents: Path, tmp_path: Path) -> Path:
    folder = tmp_path / f"index {ATTACK}"
    build_index([documents], folder)
    return folder


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_building_and_changing_an_index(
    run: Callable[..., Ran], documents: Path, tmp_path: Path, as_json: list[str]
) -> None:
    index = tmp_path / f"new {NAME}"
    built = clean(run("index", "build", documents, "--out", index, *as_json), code=0)
    assert "schön" in built
    assert "\nfake" not in built
    for command in (
        ("index", "add", documents / f"b {ATTACK}.md", "--index", index),
        ("index", "sync", documents, "--index", index),
        ("index", "info", index),
        ("index", "verify", index),
        ("index", "delete", "d *.jsonl", "--index", index),
        ("index", "compact", index),
    ):
        clean(run(*command, *as_json), code=0)
    clean(run("index", "delete", f"nothing {ATTACK}", "--index", index, *as_json), code=2)
    (index / "manifest.json").unlink()
    clean(run("index", "info", index, *as_json), code=2)
    clean(run("index", "sync", documents, "--index", index, *as_json))


FIELDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "encoder": lambda manifest: manifest["encoder"].update(name=NAME),
    "mode_reason": lambda manifest: manifest.update(mode_reason=f"{ATTACK}\nfake: line"),
    "roots": lambda manifest: manifest.update(roots=[f"/{NAME}\nfake: line"]),
    "a key": lambda manifest: manifest.update({ATTACK: 1}),
    "a file": lambda manifest: manifest["files"].update({ATTACK: "0" * 64}),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_hostile_manifest(run: Callable[..., Ran], index: Path, field: str) -> None:
    edit_manifest(index, FIELDS[field])
    for ran in (run("index", "info", index), run("index", "info", index, "--json")):
        assert "\nfake" not in clean(ran)
    for ran in (
        run("index", "verify", index),
        run("search", "canteen", "--index", index),
        run("index", "add", index.parent, "--index", index),
    ):
        clean(ran, shown=False)


def hostile(_: Messages) -> Reply:
    return Reply(status=400, error=f"{NAME}\nfake: line {EVERY}")


@pytest.mark.parametrize("output", [[], ["--json"], ["--stream"]])
def test_asking(run: Callable[..., Ran], fake: FakeOpenAI, index: Path, output: list[str]) -> None:
    fake.answers(by_task(gate="[Yes]", reason=f"{ATTACK}.", answer=f"{NAME}\nagain {EVERY} [1]"))
    common = ("ask", f"When does {NAME} close?", "--index", index, *output)
    ran = run(*common, "--strategy", "multi", "--gate", "ta-are", "--thread", NAME)
    assert "schön" in clean(ran, code=0)
    if output:
        assert ATTACK in json.loads(ran.out.splitlines()[-1])["answer"]
    fake.answers(hostile)
    ran = run(*common, "--strategy", "none")
    clean(ran, code=1)
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        (f"no command {ATTACK}",),
        ("ask", "x", f"--no-option\nfake: {ATTACK}"),
        ("ask", "x", "--index", f"{ATTACK}\nfake"),
        ("ask", "x", "--alpha", ATTACK),
        ("ask", "x", "--where", ATTACK),
        ("route", "x", "--router", ATTACK),
        ("route", "--input", ATTACK, "--output", f"{ATTACK}/x"),
        ("label", "--questions", ATTACK, "--out", ATTACK),
    ],
    ids=lambda arguments: " ".join(arguments[:3]).encode("unicode_escape").decode()[:50],
)
def test_a_bad_argument(
    run: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert ran.code in (1, 2)
    clean(ran)
    assert ran.err.count("\n") == 1
    assert key not in ran.err


def test_a_traceback(tmp_path: Path) -> None:
    ran = run_process("--debug", "search", "x", "--index", str(tmp_path / ATTACK))
    assert "Traceback" in clean(ran, code=1)


def test_a_terminal(documents: Path, tmp_path: Path) -> None:
    index = tmp_path / f"new {ATTACK}"
    for code, *arguments in (
        (0, "index", "build", documents, "--out", index),
        (0, "search", "canteen", "--index", index),
        (2, "search", "x", "--index", f"none {ATTACK}"),
    ):
        ran = in_terminal(*map(str, arguments), out=True)
        assert ran.code == code, ran
        assert harmful(ran.out + ran.err) == []
        assert "\\x1b[2J" in ran.out + ran.err
        if arguments[0] == "search" and not code:
            assert "\x1b[1m1. " in ran.err  # bold: rich's own styles reach the terminal
