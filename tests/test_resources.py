"""What a request names is looked up once, and again when its files change."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hopgate import Context
from hopgate.classifiers.checkpoint import BUILTIN_FOLDER
from hopgate.nodes.run import resources as named
from hopgate.nodes.run.resources import Lookup
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import add_passages
from hopgate.retrievers.sources import sample_path

MODEL = "openai:fake"


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Settings that name copies of the index and the router that ship with hopgate."""
    shutil.copytree(sample_path(), tmp_path / "index")
    shutil.copytree(BUILTIN_FOLDER, tmp_path / "router")
    return Context(index=str(tmp_path / "index"), router=str(tmp_path / "router"))


def touch(file: Path) -> None:
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))


def test_a_name_is_looked_up_again_when_one_of_its_files_changes(tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.touch()
    looks: list[str] = []
    lookup = Lookup(looks.append, lambda name: files)
    for _ in range(3):
        lookup("a")
    assert looks == ["a"]
    lookup("b")
    touch(files[1])
    for name in "aabb":
        lookup(name)
    assert looks == ["a", "b", "a", "b"]
    for number in range(2 * named.KEPT):  # names come from requests
        lookup(f"name {number}")
    assert lookup._cell.cache_info().currsize == named.KEPT


def test_an_error_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "one"
    lookup = Lookup(lambda name: file.read_text(), lambda name: [])
    with pytest.raises(FileNotFoundError):
        lookup("a")
    file.write_text("found")
    assert lookup("a") == "found"


def test_an_unchanged_index_is_opened_once_and_a_changed_one_again(context: Context) -> None:
    first = named.open_index(context)
    assert named.open_index(context) is first
    add_passages([make_passage("Zanderfell", "Zanderfell is a hill.")], context.index)
    changed = named.open_index(context)
    assert changed is not first
    ((best,),) = changed.search(["Zanderfell"], 1)
    assert best["title"] == "Zanderfell"


def damaged_index(context: Context) -> Path:
    return next(Path(context.index).glob("vectors/*.faiss"))


def damaged_router(context: Context) -> Path:
    return Path(context.router) / "shared.safetensors"


def routed(context: Context) -> object:
    return asyncio.run(named.route(context, MODEL, "Who was first?", 0.5))


@pytest.mark.parametrize(
    ("check", "damaged", "said"),
    [
        (named.check_index, damaged_index, "is damaged"),
        (named.open_index, damaged_index, "is damaged"),
        (lambda context: named.check_router(context, MODEL), damaged_router, "was altered"),
        (routed, damaged_router, "was altered"),
    ],
)
def test_damage_after_the_first_look_is_noticed(
    context: Context,
    check: Callable[[Context], object],
    damaged: Callable[[Context], Path],
    said: str,
) -> None:
    check(context)
    file = damaged(context)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises((ValueError, RuntimeError), match=said):
        check(context)
    file.write_bytes(content)
    check(context)


def test_an_index_that_was_removed_is_missed(context: Context) -> None:
    named.check_index(context)
    shutil.rmtree(context.index)
    for look in (named.check_index, named.open_index):
        with pytest.raises(ValueError, match="there is no index at"):
            look(context)


def test_a_filter_is_that_of_each_request(context: Context) -> None:
    whole = named.open_index(context)
    (hits,) = whole.search(["lighthouse"], 3)
    one = Context(index=context.index, where={"id": hits[1]["id"]})
    assert [hit["id"] for hit in named.open_index(one).search(["lighthouse"], 3)[0]] == [
        hits[1]["id"]
    ]
    assert named.open_index(context).search(["lighthouse"], 3) == [hits]
