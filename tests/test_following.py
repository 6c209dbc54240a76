"""Following an index that another machine builds: whole versions only, from folders and URLs."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from commands import Ran

from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import add_passages, build_from_passages
from hopgate.retrievers.index import following
from hopgate.retrievers.index.following import NotWholeError, follow
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import load_index
from hopgate.retrievers.index.verifying import verify

Run = Callable[..., Ran]


def passages(version: int) -> list[dict[str, str]]:
    return [
        make_passage(f"Note {n}", f"Boat {n} was painted {version} times.", source=f"{n}.md")
        for n in range(4)
    ]  # type: ignore[return-value]


def build(folder: Path, version: int = 1) -> Path:
    build_from_passages(passages(version), folder, replace=True)  # type: ignore[arg-type]
    return folder


def grow(folder: Path, number: int) -> None:
    add_passages([make_passage(f"New {number}", f"Bell {number} rang.", source="new")], folder)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build(tmp_path / "source")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def first(folder: Path, query: str) -> str:
    ((hit, *_),) = load_index(folder).search([query], 1, "bm25")
    return hit["text"]


def test_only_new_files_are_copied_and_the_copy_is_the_index(source: Path, copy: Path) -> None:
    said: list[tuple[str, int, int]] = []
    report = follow(str(source), copy, lambda *step: said.append(step))
    assert report.changed
    assert report.files == len(info(source)["files"])
    assert info(copy) == info(source)
    assert len(said) >= report.files and said[-1][0] == "copying megabytes"
    again = follow(str(source), copy)
    assert (again.changed, again.files, again.version) == (False, 0, 1)
    old = set(info(copy)["files"])
    grow(source, 1)
    report = follow(f"file://{source}", copy)
    assert report.files == len(set(info(source)["files"]) - old)
    assert report.version == 2
    assert first(copy, "bell") == "Bell 1 rang."
    assert verify(copy).problems == []
    assert {path.name for path in copy.iterdir()} == {"manifest.json", "words", "vectors", ".lock"}


def test_another_index_at_the_source_replaces_the_copy(source: Path, copy: Path) -> None:
    """Its files have the names that those of the copy have."""
    follow(str(source), copy)
    shutil.rmtree(source)
    build(source, 2)
    assert set(info(source)["files"]) & set(info(copy)["files"])
    follow(str(source), copy)
    assert "painted 2 times" in first(copy, "boat")
    assert verify(copy).problems == []


def arriving(version: Path, shared: Path) -> Iterator[None]:
    """Copy an index as a stranger's tool might: in any order, and files in two halves."""
    files = [path.relative_to(version) for path in version.rglob("*") if path.is_file()]
    random.Random(0).shuffle(files)
    for name in (each for each in files if not each.name.startswith(".")):
        content = (version / name).read_bytes()
        (shared / name).parent.mkdir(parents=True, exist_ok=True)
        for part in (content[: len(content) // 2], content):
            (shared / name).write_bytes(part)
            yield


def test_a_half_copied_version_is_never_taken(source: Path, copy: Path, tmp_path: Path) -> None:
    shared = Path(shutil.copytree(source, tmp_path / "shared"))
    follow(str(shared), copy)
    build(source, 2)
    taken = []
    for _ in arriving(source, shared):
        try:
            follow(str(shared), copy)
        except NotWholeError as error:
            assert "is not whole: " in str(error)
            assert "the copy stays as it was" in str(error)
        taken.append(first(copy, "boat"))
    assert all("painted 1 times" in each for each in taken[:-1])
    assert "painted 2 times" in taken[-1]
    assert verify(copy).problems == []


KILLED = """
import os, signal, sys
from hopgate.retrievers.index import following
calls = 0
def dying(real):
    def call(*arguments, **named):
        global calls
        calls += 1
        if calls == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return call
following._Source.fetch = dying(following._Source.fetch)
following.os.replace = dying(os.replace)
following.follow(sys.argv[1], sys.argv[2])
"""


@pytest.mark.parametrize("call", [3, 21])
def test_a_killed_copy_is_the_old_version_or_the_new_and_goes_on(
    call: int, source: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow(str(source), copy)
    build(source, 2)
    command = [sys.executable, "-c", KILLED, str(source), str(copy), str(call)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert first(copy, "boat").endswith(("painted 1 times.", "painted 2 times."))
    kept = {path.name for path in (copy / ".work").glob("kept-*") if path.stat().st_size}
    real, fetched = following._Source.fetch, list[str]()

    def fetch(self: following._Source, name: str, *rest: Any) -> None:
        fetched.append(name)
        real(self, name, *rest)

    monkeypatch.setattr(following._Source, "fetch", fetch)
    follow(str(source), copy)
    assert not kept & {f"kept-{name.replace('/', '-')}" for name in fetched}
    assert bool(kept) == (call == 3)
    assert "painted 2 times" in first(copy, "boat")
    assert verify(copy).problems == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(source: Path) -> Iterator[str]:
    """The address of the source, on a real server without ranges."""
    handler = partial(Quiet, directory=str(source))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_index_is_followed_over_http(web: str, source: Path, copy: Path) -> None:
    follow(web, copy)
    grow(source, 1)
    assert follow(web, copy).version == 2
    assert first(copy, "bell") == "Bell 1 rang."


def test_a_file_is_not_copied_beyond_its_end(source: Path, copy: Path) -> None:
    with (source / "vectors/1.faiss").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(NotWholeError, match=r"vectors/1\.faiss is not the file that manifest"):
        follow(str(source), copy)
    assert not (copy / "manifest.json").exists()


def test_bad_input_is_one_line_and_changes_nothing(
    source: Path, copy: Path, tmp_path: Path, run: Run
) -> None:
    def refused(where: object, to: Path = copy) -> str:
        ran = run("index", "follow", str(where), "--index", str(to))
        assert ran.code in (1, 2)
        assert ran.err.count("\n") == 1
        return ran.err

    assert "has no manifest.json: build an index there" in refused(tmp_path / "none")
    assert "overlap" in refused(source, source / "copy")
    assert "cannot be followed: Protocol not known: ftpx" in refused("ftpx://host/index")
    error = refused("http://ann:secret@127.0.0.1:9/index")
    assert "http://127.0.0.1:9/index cannot be read" in error
    assert "secret" not in error
    assert "Install s3fs" in refused("s3://bucket/index")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("Dear Ann")
    assert "not part of an index" in refused(source, tmp_path / "full")
    assert not copy.exists()
    manifest = json.loads((source / "manifest.json").read_text())
    manifest["encoder"] |= {"name": "nobody/knows", "fingerprint": "1" * 64}
    (source / "manifest.json").write_text(json.dumps(manifest))
    assert "manifest.json is not as it was written" in refused(source)
    assert not copy.exists()


def test_an_encoder_that_is_not_here_is_told_before_anything_is_copied(
    source: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopgate.retrievers.index.reader.find_encoder", lambda _: None)
    with pytest.raises(RuntimeError, match="needs the encoder minilm, which is not on this"):
        follow(str(source), copy)
    assert not copy.exists()


def test_a_full_disk_is_told_before_anything_is_copied(
    source: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil._ntuple_diskusage(1, 1, 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(RuntimeError, match="free some space"):
        follow(str(source), copy)
    assert not (copy / "manifest.json").exists()


def test_a_watch_takes_over_each_version_and_tells_each_error_once(
    source: Path, copy: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = source.with_name("hidden")

    def sleep(_: float) -> None:
        match step := next(steps):
            case 2:
                grow(source, step)
            case 4:
                os.rename(source, hidden)
            case 6:
                os.rename(hidden, source)
                grow(source, step)
            case 8:
                raise KeyboardInterrupt

    steps = iter(range(1, 9))
    monkeypatch.setattr("hopgate.commands.index.time.sleep", sleep)
    ran = run("index", "follow", str(source), "--index", str(copy), "--watch", "--json")
    versions = [json.loads(line) for line in ran.out.splitlines()]
    assert [(each["version"], each["changed"]) for each in versions] == [
        (n, True) for n in (1, 2, 3)
    ]
    assert ran.err.count("not updated, trying again") == 1
    assert "has no manifest.json" in ran.err
