"""A stranger's index is harmless: links, FIFOs, a crafted manifest, crafted files of the engines.

HOPGATE_WIDE=300 crafts three hundred files of each kind in place of a few.
"""

import copy
import itertools
import json
import os
import random
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import Ran
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from indexing import (
    HashEncoder,
    attack,
    declare,
    edit_manifest,
    files,
    flip,
    one_of,
    stamped,
    texts,
)

from hopgate.retrievers import encoders
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import add_passages, build_from_passages, compact, delete, sync
from hopgate.retrievers.index.manifest import MAX_MANIFEST_BYTES, info, to_bytes
from hopgate.retrievers.index.reader import Index, check_index
from hopgate.retrievers.index.vectors import Searcher
from hopgate.retrievers.index.verifying import verify

WIDE = int(os.environ.get("HOPGATE_WIDE", "0"))
SECONDS = 10  # reached only if a test fails


@pytest.fixture
def encoder() -> HashEncoder:
    return HashEncoder()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with several segments and a deleted passage."""
    index, encoder = tmp_path_factory.mktemp("built") / "index", HashEncoder()
    many = [make_passage("T", f"stamp of {n}", f"m{n % 3}.txt") for n in range(40)]
    build_from_passages([*stamped(0), *many], index, encoder)
    add_passages([make_passage("T", "stamp of an addition", "new.txt")], index, encoder)
    delete(index, ["0.txt"])
    return index


@pytest.fixture
def index(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "index"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside the index that nothing may touch."""
    (tmp_path / "victim" / "deep").mkdir(parents=True)
    (tmp_path / "victim" / "thesis.txt").write_text("years of work")
    (tmp_path / "victim" / "deep" / "1.faiss").write_text("years of work")
    return tmp_path / "victim"


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail, rather than hang, after some time."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def operations(index: Path, docs: Path) -> dict[str, Callable[[], object]]:
    """Everything that can be done with an index."""
    encoder = HashEncoder()
    new = [make_passage("New", "something new", "1.txt")]

    def search() -> None:
        opened = Index.open(index, encoder)
        for mode in ("dense", "bm25", "hybrid"):
            for where in (None, {"source": "1.txt"}, {"source": "*.txt", "page": 1}):
                opened.search(["stamp document"], 3, mode, where)

    return {
        "info": lambda: info(index),
        "verify": lambda: verify(index, encoder),
        "search": search,
        "sync": lambda: sync(docs, index, encoder),
        "add": lambda: add_passages(new, index, encoder),
        "delete": lambda: delete(index, ["2.txt"]),
        "compact": lambda: compact(index),
        "build": lambda: build_from_passages(stamped(3), index, encoder, replace=True),
    }


def attempted(index: Path, docs: Path) -> dict[str, str]:
    """Do everything; return the errors. Those that are no clear refusal fail the test."""
    errors = {}
    for name, run in operations(index, docs).items():
        try:
            with at_most(SECONDS):
                run()
        except (ValueError, RuntimeError) as error:
            assert str(index.parent) in str(error) or "index" in str(error), (name, error)
            assert "\n" not in str(error)
            errors[name] = str(error)
    return errors


# Links, FIFOs, devices and folders in place of files


def to_file(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "thesis.txt")


def to_folder(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def dangling(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "gone" / "deeper")


def fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def device(path: Path, _: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
    except OSError:
        pytest.skip("a device cannot be made here")


def folder(path: Path, _: Path) -> None:
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "notes.txt").write_text("years of work")


def moved(path: Path, victim: Path) -> None:
    """The entry itself, outside the index, and a link to it."""
    if not path.exists():
        pytest.skip("there is nothing to move")
    path.rename(victim / "moved")
    path.symlink_to(victim / "moved")


KINDS = (to_file, to_folder, dangling, fifo, device, folder, moved)
PLACES = (
    ".work",
    ".lock",
    ".writer.json",
    "manifest.json",
    ".manifest.json.1.2",
    "..writer.json.1.2",
    "words",
    "vectors",
    "words/*.store",
    "words/" + "0" * 32 + ".store",
    "vectors/*.faiss",
    "vectors/1.keys",
    "vectors/9.faiss",
    "vectors/dead-4.keys",
)
CHANGES = ("sync", "add", "delete", "compact", "build")


@pytest.mark.parametrize(
    ("kind", "place"), list(itertools.product(KINDS, PLACES))[:: 1 if WIDE else 4]
)
def test_nothing_outside_is_touched_and_nothing_hangs(
    index: Path, victim: Path, kind: Callable[[Path, Path], None], place: str
) -> None:
    (docs := index.parent / "docs").mkdir()
    (docs / "1.txt").write_text("stamp of a file")
    path = one_of(index, place) if "*" in place else index / place
    if kind is not moved and path.exists():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    kind(path, victim)
    before = files(victim)
    errors = attempted(index, docs)
    assert files(victim) == before
    ours = path.name in (".work", "words", "vectors")
    if not (kind is folder and ours):  # a folder of that name belongs to an index
        assert set(CHANGES) <= errors.keys()
        assert path.is_symlink() or path.exists()
    if kind is folder and not ours:
        assert (path / "deep" / "notes.txt").exists()


# The manifest


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner: dict[Any, Any] = {}
    if isinstance(value, dict | list):
        inner = value if isinstance(value, dict) else dict(enumerate(value))
    for key, each in inner.items():
        yield from leaves(each, (*path, key))


ODD = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**40, 0.5, -1.5, 1e308, float("nan"), float("inf")),
    *("", "x", "../../victim/thesis.txt", "/etc/passwd", "a\x00b", "a\nb", "\ud800", "9" * 4_000),
    *([], {}, [[]], {"x": {}}, ["x"], [None]),
)
GONE = object()


def replaced(manifest: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(manifest)
    if not path:
        return value
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


def try_manifest(built: Path, where: Path, path: tuple[Any, ...], value: Any) -> None:
    """Do everything with an index of which one value of the manifest is replaced."""
    shutil.rmtree(where, ignore_errors=True)
    index = Path(shutil.copytree(built, where / "index"))
    (victim := where / "victim").mkdir()
    (victim / "thesis.txt").write_text("years of work")
    (docs := where / "docs").mkdir()
    (docs / "1.txt").write_text("stamp of a file")
    manifest = replaced(json.loads((index / "manifest.json").read_text()), path, value)
    (index / "manifest.json").write_text(json.dumps(manifest))
    attempted(index, docs)
    assert files(victim) == {"thesis.txt": b"years of work"}


@settings(
    max_examples=WIDE or 20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_value_of_the_manifest_is_used_or_refused(
    built: Path, tmp_path: Path, data: Any
) -> None:
    manifest = json.loads((built / "manifest.json").read_text())
    path = data.draw(st.sampled_from(list(leaves(manifest))))
    value = data.draw(st.sampled_from([*ODD, GONE] if path else ODD))
    try_manifest(built, tmp_path / "tried", path, value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "manifest.json cannot be read"),
        (b'{"a":' * 100_000, "manifest.json cannot be read"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "manifest.json has over 16 MiB"),
        (b"9" * 5_000, "manifest.json"),
        (b"\xff\xfe", "manifest.json"),
        (b"null", "the whole of manifest.json: Input should be a valid dictionary"),
        (None, "manifest.json has over 16 MiB"),
    ],
    ids=["arrays", "objects", "huge", "number", "bytes", "null", "sparse"],
)
def test_a_manifest_that_is_no_manifest_is_refused(
    index: Path, content: bytes | None, message: str
) -> None:
    with (index / "manifest.json").open("wb") as file:
        if content is None:
            file.truncate(1 << 40)
        else:
            file.write(content)
    for read in (info, check_index, Index.open):
        with pytest.raises(ValueError, match=message), at_most(SECONDS):
            read(index)
    with at_most(SECONDS):
        assert verify(index, HashEncoder()).problems
    with pytest.raises(ValueError, match="is a link or not part of an index"):
        build_from_passages(stamped(0), index, HashEncoder())


@pytest.mark.parametrize(
    "change",
    [
        lambda words: words["schema"].pop(0),
        lambda words: words["segments"].append({"segment_id": "../x"}),
        lambda words: words["index_settings"].update(docstore_compression="unknown"),
        lambda words: words["segments"].clear(),
    ],
)
def test_words_of_other_fields_or_unknown_compression_are_refused(
    index: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edit_manifest(index, lambda manifest: change(manifest["words"]))
    with pytest.raises(ValueError, match="damaged or incomplete"):
        Index.open(index, HashEncoder())


# Encoders


def name_encoder(index: Path, name: str) -> None:
    """Name an encoder in a manifest whose checksum is right."""
    manifest = info(index)
    manifest["encoder"]["name"] = name
    (index / "manifest.json").write_bytes(to_bytes(manifest))


def test_an_encoder_is_never_fetched_for_a_strangers_index(
    index: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Ran]
) -> None:
    def fetch(*_: object, **__: object) -> None:
        raise AssertionError("something was fetched")

    monkeypatch.setattr(encoders, "download", fetch)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fetch)
    name_encoder(index, "stranger/model")
    for use in (
        lambda: Index.open(index),
        lambda: check_index(index),
        lambda: verify(index),
        lambda: add_passages(stamped(5), index),
    ):
        with pytest.raises(RuntimeError, match=r"stranger/model, which is not on this machine"):
            use()
    assert run("search", "stamp", "--index", index).code != 0


@pytest.mark.parametrize("name", ["model", "./model", "{index}/model"])
def test_an_encoder_that_came_with_an_index_is_refused(
    index: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (index / "model").mkdir()
    (index / "model" / "model.safetensors").write_bytes(b"weights")
    monkeypatch.chdir(index)
    name = name.format(index=index)
    name_encoder(index, name)
    for use in (Index.open, check_index, verify):
        with pytest.raises(ValueError, match="a folder that may have come with it"):
            use(index)


# Files of the engines


@pytest.mark.parametrize("factory", ["Flat", "IVF2,SQ8", "HNSW8,SQ8"])
@pytest.mark.parametrize("pattern", ["vectors/*", "words/*"])
def test_crafted_files_are_damage_or_do_no_harm(tmp_path: Path, factory: str, pattern: str) -> None:
    if factory != "Flat" and pattern == "words/*":
        pytest.skip("words are the same for every factory")
    passages = [
        make_passage(f"T{n % 5}", f"stamp text {n}", f"{n % 3}.txt", n % 2 or None)
        for n in range(100)
    ]
    build_from_passages(passages, tmp_path / "index", HashEncoder(), factory=factory)
    outcomes = attack(tmp_path / "index", pattern, count := WIDE or 15)
    assert sum(outcomes.values()) == count
    bad = [
        each
        for each in outcomes
        if each not in ("fine", "damaged")
        and "a vector has NaN" not in each
        and "has no source" not in each
    ]
    assert bad == []
    assert outcomes["damaged"] > 2


def test_a_file_that_ends_within_its_header_is_refused(tmp_path: Path) -> None:
    """FAISS reads beyond the end of such a file if it is mapped."""
    build_from_passages(stamped(0), tmp_path / "index", HashEncoder())
    file = tmp_path / "index" / "vectors" / "1.faiss"
    whole = file.read_bytes()
    for size in range(0, 60, 1 if WIDE else 7):
        file.unlink()
        file.write_bytes(whole[:size])
        declare(tmp_path / "index", "vectors/1.faiss")
        with pytest.raises((RuntimeError, ValueError)):
            Searcher.open(file.with_suffix(""), {})


# Flipped bytes


def test_flipped_bytes_are_found_and_never_written_on(index: Path, encoder: HashEncoder) -> None:
    chance = random.Random(8)
    before = files(index)
    paths = [name for name in before if before[name]]
    held = texts(index, encoder)
    for round_ in range(WIDE or len(paths)):
        name = paths[round_ % len(paths)]
        file = index / name
        flip(file, chance.randrange(len(before[name])))
        report = verify(index, encoder)
        assert any(Path(name).name in problem for problem in report.problems), name
        with pytest.raises(ValueError, match=r"damaged or incomplete|format version"):
            compact(index)
        left = files(index)
        assert {each: left[each] for each in left if each != name} == {
            each: before[each] for each in before if each != name
        }
        file.write_bytes(before[name])
    assert verify(index, encoder).problems == []
    assert texts(index, encoder) == held


def test_damage_of_large_files_does_not_pass_into_new_ones(
    index: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopgate.retrievers.index.manifest.HASH_AT_OPEN_BYTES", 0)
    for pattern in ("vectors/*.keys", "vectors/*.faiss", "words/*.store"):
        before = files(index)
        file = one_of(index, pattern)
        flip(file, file.stat().st_size // 2)
        with pytest.raises(ValueError, match="damaged or incomplete"):
            compact(index)
        file.write_bytes(before[str(file.relative_to(index))])
        assert files(index) == before
    flip(one_of(index, "vectors/*.keys"))
    with pytest.raises(ValueError, match="damaged or incomplete"):
        add_passages([make_passage("N", "new", "n.txt")], index, encoder)


# Read-only folders


@pytest.fixture
def read_only(index: Path) -> Iterator[Path]:
    """An index on a file system that cannot be written to."""
    command = ["mount", "--bind", str(index), str(index)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a folder cannot be mounted here")
    try:
        command = ["mount", "-o", "remount,ro,bind", str(index)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("a folder cannot be mounted read-only here")
        yield index
    finally:
        subprocess.run(["umount", "-l", str(index)], check=True)


def test_an_index_on_a_read_only_file_system_is_read_and_not_changed(
    read_only: Path, encoder: HashEncoder
) -> None:
    assert len(texts(read_only, encoder)) == 45
    assert verify(read_only, encoder).problems == []
    assert info(read_only)["passages"] == 45
    with pytest.raises(ValueError, match=r"cannot be written to .* \(Read-only file system\)"):
        add_passages(stamped(1), read_only, encoder)


def test_without_a_temporary_folder_an_index_is_not_called_damaged(
    index: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(index / "gone"))
    for use in (Index.open, verify):
        with pytest.raises(FileNotFoundError, match="gone/hopgate-"):
            use(index, encoder)
