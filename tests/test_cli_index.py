"""`hopgate index`: its commands, their reports, and one line for every error."""

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line, started
from doubles import by_task
from fake_openai import FakeOpenAI

from hopgate.commands.index import SKIPPED_SHOWN
from hopgate.retrievers import watching
from hopgate.retrievers.building import build_index, sync
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import Index
from hopgate.retrievers.index.writing import writing
from hopgate.retrievers.sources import sample_path
from hopgate.terminal import progress


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "bakery.md").write_text("# Harbour bakery\n\nBread is baked before dawn.\n")
    (folder / "mill.txt").write_text("The tidal mill grinds barley, never wheat.\n")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7\nthis is no PDF")
    return folder


def shown(ran: Ran) -> dict[str, str]:
    """The values of a printed page, by their names."""
    assert ran.code == 0, ran
    lines = [line.split("  ", 1) for line in ran.out.splitlines() if "  " in line]
    return {name: text.strip() for name, text in lines}


def test_own_documents_are_indexed_and_asked_about_in_two_commands(
    run: Callable[..., Ran], fake: FakeOpenAI, documents: Path, tmp_path: Path
) -> None:
    out = tmp_path / "index"
    built = run("index", "build", documents, "--out", out, "--json")
    assert built.code == 0, built.err
    report = json.loads(built.out)
    assert (report["files"], report["passages"], report["path"]) == (2, 2, str(out))
    (skipped,) = report["skipped"]
    assert skipped["path"].endswith("broken.pdf")
    assert skipped["reason"]

    fake.answers(by_task(answer="Barley [1]"))
    asked = run(
        "ask", "What does the mill grind?", "--index", out, "--strategy", "single", "--json"
    )
    (citation,) = json.loads(asked.out)["citations"]
    assert citation["quote"] == "The tidal mill grinds barley, never wheat."

    info = run("index", "info", out, "--json")
    assert info.code == 0
    manifest = json.loads(info.out)
    assert manifest["passages"] == 2
    assert manifest["encoder"]["name"] == "minilm"


def test_an_index_is_changed_and_verified_from_the_command_line(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    docs, out = tmp_path / "docs", tmp_path / "index"
    docs.mkdir()
    (docs / "mill.txt").write_text("The mill grinds barley.")
    assert run("index", "build", docs, "--out", out).code == 0
    assert "nothing changed" in run("index", "build", docs, "--out", out).out
    (docs / "mill.txt").write_text("The mill grinds oats.")
    (docs / "ferry.txt").write_text("The ferry is red.")
    added = json.loads(run("index", "add", docs, "--index", out, "--json").out)
    assert (added["version"], added["added"], added["removed"]) == (2, 2, 1)
    deleted = json.loads(run("index", "delete", "ferry*", "--index", out, "--json").out)
    assert (deleted["version"], deleted["removed"], deleted["passages"]) == (3, 1, 1)
    assert "oats" in run("search", "mill", "--index", out).out
    one_line(run("index", "delete", "ferry*", "--index", out), 2, str(out), "'ferry*'")
    assert json.loads(run("index", "verify", out, "--json").out)["problems"] == []
    (vectors,) = (out / "vectors").glob("*.faiss")
    with vectors.open("r+b") as file:
        file.seek(60)
        file.write(b"x")
    ran = run("index", "verify", out)
    assert (ran.code, ran.out) == (1, "")
    assert f"vectors/{vectors.name} has changed" in ran.err


# Bad input


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of things that are no index or no document; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/mill.txt").write_text("The mill grinds barley.")
    for name in ("empty", "pipes", "only", "plain"):
        Path(name).mkdir()
    os.mkfifo("pipe.txt")
    os.mkfifo("pipes/pipe.txt")
    Path("only/a.bin").write_text("x")
    Path("plain/x").write_text("x")
    Path("nothing.txt").write_text("")
    Path("loop").symlink_to("loop")
    for name, manifest in {"junk": "{", "deep": "[" * 100_000, "new": NEWER, "old": OLDER}.items():
        shutil.copytree(sample_path(), name)
        (Path(name) / "manifest.json").write_text(manifest)
    shutil.copytree(sample_path(), "fifo")
    Path("fifo/manifest.json").unlink()
    os.mkfifo("fifo/manifest.json")
    shutil.copytree(sample_path(), "idx")
    return tmp_path


NEWER = '{"format_version": 9, "encoder": {}}'
OLDER = '{"format_version": 2, "encoder": {"name": "contriever"}, "roots": ["/my docs"]}'

BAD_USAGE = json.loads((Path(__file__).parent / "data" / "index_usage.json").read_text())
"""Arguments of `hopgate index` (`@` is an empty one) and parts of the error."""


def test_bad_input_is_one_line_and_changes_nothing(
    run: Callable[..., Ran], odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = (odd / "idx" / "manifest.json").read_bytes()
    (odd / "idx" / ".lock").touch()  # stays in an index that someone tried to change
    before = sorted(odd.rglob("*"))
    for line, parts in BAD_USAGE.items():
        arguments = ["" if each == "@" else each for each in line.split(" ")]
        one_line(run("index", *arguments), 2, *parts)
        assert sorted(odd.rglob("*")) == before, line
    assert (odd / "idx" / "manifest.json").read_bytes() == manifest


def test_verify_does_not_wait_for_a_pipe(run: Callable[..., Ran], odd: Path) -> None:
    ran = run("index", "verify", "fifo")
    assert (ran.code, ran.out) == (1, "")
    assert "not a regular file" in ran.err


def test_two_changes_at_once_are_refused(run: Callable[..., Ran], odd: Path) -> None:
    with writing(odd / "idx"):
        for line in ("sync docs --index idx", "compact idx", "build docs --out idx"):
            one_line(run("index", *line.split()), 1, "another process", "wait until it is done")


# Building


def test_an_index_keeps_its_encoder_prefixes_and_language(
    run: Callable[..., Ran], odd: Path
) -> None:
    build = ("index", "build", "docs", "--out", "o")
    assert run(*build, "--query-prefix", "query: ", "--language", "DE").code == 0
    assert "nothing changed" in run(*build).out
    manifest = info("o")
    assert (manifest["language"], manifest["encoder"]["query_prefix"]) == ("de", "query: ")
    one_line(run(*build, "--passage-prefix", "p: "), 2, "the prefixes", "--replace")
    assert run(*build, "--passage-prefix", "p: ", "--replace").code == 0
    assert info("o")["encoder"]["passage_prefix"] == "p: "


def test_a_build_that_removes_most_of_an_index_needs_replace(
    run: Callable[..., Ran], odd: Path
) -> None:
    assert run("index", "build", "docs", "--index", "idx", "--replace").code == 0
    assert info("idx")["passages"] == 1


def test_a_report_names_what_was_skipped(run: Callable[..., Ran], odd: Path) -> None:
    docs = odd / "docs"
    for name in ("ferry.md", "twin.md"):
        (docs / name).write_text("# Ferry\n\nThe ferry is red.")
    (docs / "picture.png").write_bytes(b"x")
    for number in range(25):
        (docs / f"{number}.txt").write_text("")
    ran = run("index", "build", docs, "--out", "o")
    skipped = [line for line in ran.err.splitlines() if line.startswith("skipped")]
    assert len(skipped) == SKIPPED_SHOWN + 1
    assert skipped[-1] == "skipped 5 more; --json lists them all"
    assert "1 file skipped by type: .png 1 (for example picture.png)" in ran.err.splitlines()
    page = shown(ran)
    assert (page["passages"], page["files"], page["duplicates"]) == ("2", "3", "1")
    report = json.loads(run("index", "build", docs, "--out", "o", "--json").out)
    assert len(report["skipped"]) == 25


def test_progress_is_printed_where_there_is_no_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.1)
    with progress.stages() as update:
        time.sleep(0.08)
        for done in range(4):
            update("encoding passages", done * 100, 2000)
            time.sleep(0.07)
    out, err = capfd.readouterr()
    first, second, *_ = err.splitlines()
    assert (out, first) == ("", "encoding passages: 0 of 2,000")
    assert second.startswith("encoding passages: 200 of 2,000 (")
    assert re.fullmatch(r".* \(\d+/s, 0:00:0\d left\)", second)


def test_work_that_is_over_at_once_prints_no_progress(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.stages() as update:
        update("encoding passages", 0, 1)
        update("encoding passages", 1, 1)
    assert capfd.readouterr() == ("", "")


# Describing


def test_info_reads_like_a_page(run: Callable[..., Ran], odd: Path) -> None:
    (odd / "docs" / "ferry.txt").write_text("The ferry is red.")
    assert run("index", "build", "docs", "--out", "o").code == 0
    ran = run("index", "info", "--index", "o")
    page = shown(ran)
    assert (page["passages"], page["sources"]) == ("2", "2")
    assert page["encoder"] == "minilm, 384 dimensions"
    assert (page["factory"], page["recall@10"]) == ("Flat, chosen", "exact")
    assert page["folders"] == str(odd / "docs")
    assert "still stored" not in page
    assert "sha256" not in ran.out
    assert "sha256" in run("index", "info", "o", "--json").out
    assert run("index", "delete", "ferry.txt", "--index", "o").code == 0
    assert shown(run("index", "info", "o"))["still stored"].startswith("1 deleted: `hopgate")
    assert shown(run("index", "compact", "o"))["passages"] == "1"
    assert "still stored" not in shown(run("index", "info", "o"))


# Following a folder


def test_sync_adds_what_is_new_and_removes_what_is_gone(run: Callable[..., Ran], odd: Path) -> None:
    docs = odd / "docs"
    (docs / os.fsdecode(b"caf\xe9.txt")).write_text("The café is at the port.")
    (docs / "ferry.txt").write_text("The ferry is red.")
    assert run("index", "build", "docs", "--out", "o").code == 0
    (docs / "mill.txt").unlink()
    (docs / "ferry.txt").write_text("The ferry is blue now.")
    (docs / "new.md").write_text("# Lamp\n\nThe lamp burns oil.")
    (docs / "empty.txt").write_text("")
    report = json.loads(run("index", "sync", "docs", "--index", "o", "--json").out)
    counts = {name: report[name] for name in ("new", "updated", "gone", "unchanged", "passages")}
    assert counts == {"new": 1, "updated": 1, "gone": 1, "unchanged": 1, "passages": 3}
    ran = run("index", "sync", "docs", "--index", "o")
    assert "nothing changed" in ran.out
    assert shown(ran)["unchanged"] == "3"


def test_sync_removes_nothing_while_a_folder_of_the_index_is_missing(
    run: Callable[..., Ran], odd: Path
) -> None:
    (odd / "more").mkdir()
    (odd / "more" / "ferry.txt").write_text("The ferry is red.")
    assert run("index", "build", "docs", "more", "--out", "o").code == 0
    (odd / "more").rename(odd / "away")
    ran = run("index", "sync", "docs", "--index", "o")
    assert (ran.code, info("o")["passages"]) == (0, 2)
    assert f"{odd / 'more'}: this folder of the index is missing" in ran.err


def test_a_watch_follows_changes_outlasts_errors_and_waits_for_its_folder(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(watching, name, 0.05)
    docs, index, stop = odd / "docs", odd / "docs" / ".index", threading.Event()
    build_index(["docs"], index)
    calls: list[bool] = []

    def update() -> bool:
        try:
            sync(docs, index)
            calls.append(True)
        except ValueError:  # the folder is gone
            calls.append(False)
        return calls[-1]

    def wait(count: int, *, works: bool) -> None:
        limit = time.monotonic() + 60
        while calls.count(works) < count:
            assert time.monotonic() < limit
            time.sleep(0.02)

    thread = threading.Thread(target=watching.watch, args=(docs, index, update, stop), daemon=True)
    thread.start()
    wait(1, works=True)
    (docs / "other.bin").write_text("x")
    (docs / ".hidden.txt").write_text("x")
    (docs / "ferry.txt").write_text("The ferry is red.")
    wait(2, works=True)
    time.sleep(0.5)
    assert calls == [True, True]
    docs.rename(odd / "away")
    wait(2, works=False)
    (odd / "away").rename(docs)
    wait(3, works=True)
    (docs / "lamp.txt").write_text("The lamp burns oil.")
    wait(4, works=True)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert len(Index.open(index)) == 3


def test_ctrl_c_ends_a_watch_and_leaves_the_index_whole(run: Callable[..., Ran], odd: Path) -> None:
    (odd / "docs" / "broken.pdf").write_text("no pdf")
    assert run("index", "build", "docs", "--out", "o").code == 0
    (odd / "docs" / "ferry.txt").write_text("The ferry is red.")
    watch = ("index", "sync", "docs", "--index", "o", "--watch", "--json")
    process = started(watch, lambda: info("o")["version"] == 2)
    (odd / "docs" / "lamp.txt").write_text("The lamp burns oil.")
    limit = time.monotonic() + 60
    while info("o")["version"] < 3:
        assert time.monotonic() < limit
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    rows = [json.loads(line) for line in out.splitlines()]
    assert (process.returncode, "Traceback" in err) == (0, False)
    assert [(row["new"], row["unchanged"]) for row in rows] == [(1, 1), (1, 2)][: len(rows)]
    assert all(row["time"] and len(row["skipped"]) == 1 for row in rows)
    assert run("index", "verify", "o").code == 0


# The modes


@pytest.fixture
def parts(odd: Path, run: Callable[..., Ran]) -> Path:
    """An index of data sheets of parts whose numbers differ in one digit."""
    (odd / "parts").mkdir()
    for number in range(4470, 4530):
        text = f"The valve ZK-{number} withstands {number % 7 + 3} bar. It is made of brass."
        (odd / "parts" / f"{number}.txt").write_text(text)
    assert run("index", "build", "parts", "--out", "p", "--language", "en").code == 0
    return odd / "p"


def test_a_part_number_is_found_first_by_default_and_info_says_what_was_measured(
    run: Callable[..., Ran], parts: Path
) -> None:
    for number in (4471, 4499, 4526):
        ran = run("search", f"How much can ZK-{number} take?", "--index", parts, "--json")
        assert json.loads(ran.out)[0]["title"] == f"{number}"
    page = shown(run("index", "info", parts))
    assert page["mode"] == "hybrid"
    assert re.search(r"[\d.]+ dense, [\d.]+ BM25, [\d.]+ hybrid", page["mode reason"])


def test_own_questions_compare_the_modes(run: Callable[..., Ran], parts: Path) -> None:
    rows = [
        {"question": f"How much can ZK-{number} take?", "expected": f"{number}.txt"}
        for number in range(4480, 4500)
    ]
    questions = parts.parent / "questions.jsonl"
    questions.write_text("\n".join(map(json.dumps, [*rows, {"question": "Which are of brass?"}])))
    ran = run("index", "try", questions, "--index", parts, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["asked"], len(found["questions"])) == (20, 21)
    assert found["modes"]["bm25"] == found["modes"]["hybrid"] == {"first": 1, "found": 1, "mrr": 1}
    assert found["modes"]["dense"]["first"] < 1
    first, last = found["questions"][0], found["questions"][-1]
    assert first["ranks"]["bm25"] == 1
    assert first["hits"]["bm25"][0]["source"] == "4480.txt"
    assert len(last["hits"]["dense"]) == 5
    assert last["ranks"] == {"dense": None, "bm25": None, "hybrid": None}
    pages = run("index", "try", questions, "--index", parts).out
    assert "hybrid  rank 1" in pages
    assert re.search(r"bm25\W+1\W+1\W+1\W", pages), pages


def test_questions_of_a_text_are_shown_side_by_side(run: Callable[..., Ran], parts: Path) -> None:
    questions = parts.parent / "questions.txt"
    questions.write_text("\nHow much can ZK-4471 take?\n")
    ran = run("index", "try", questions, "--index", parts, "-k", "2")
    assert ran.code == 0, ran.err
    modes = [line.split()[0] for line in ran.out.splitlines() if line.startswith("  ")]
    assert modes == ["dense"] * 2 + ["bm25"] * 2 + ["hybrid"] * 2
    assert "ZK-4471 withstands" in ran.out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "none.txt cannot be read"),
        ("empty.txt", "\n", "has no questions"),
        ("bad.jsonl", '{"expected": "a.txt"}', "question must be a text"),
        ("bad.jsonl", '{"question": "x", "expected": [1]}', "expected a text or a list of texts"),
    ],
)
def test_questions_that_cannot_be_read_are_refused(
    run: Callable[..., Ran], odd: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (odd / name).write_text(content)
    ran = run("index", "try", odd / name, "--index", "sample")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_the_default_mode_can_be_set_and_measured_again(
    run: Callable[..., Ran], parts: Path
) -> None:
    def build(*options: str) -> dict[str, Any]:
        ran = run("index", "build", "parts", "--out", parts, "--json", *options)
        assert ran.code == 0, ran.err
        report: dict[str, Any] = json.loads(ran.out)
        return report

    given = build("--mode", "bm25")
    assert (given["mode"], given["mode_reason"], given["encoded"]) == ("bm25", "as given", 0)
    for number in range(100):
        (parts.parent / "parts" / f"more{number}.txt").write_text(f"Shelf {number} is empty now.")
    assert build()["mode"] == "bm25"  # though it is another collection
    assert "mean reciprocal rank" in build("--mode", "auto")["mode_reason"]


def test_an_interrupted_build_says_how_it_goes_on(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hopgate.retrievers.building.build_index", interrupted)
    ran = run("index", "build", "docs", "--out", "index")
    assert ran.code == 130
    assert ran.err.strip() == "hopgate: interrupted; run the same command again to resume"
