"""The process-wide cache: one load for each key, and again when a file changes."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hopgate.common.cache import Cache

TIMEOUT = 10  # seconds; reached only if a test fails


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("one")
    return path


def counted(values: list[str]) -> Callable[[], str]:
    """Return a loader that records each load in `values`."""

    def load() -> str:
        values.append(f"load {len(values) + 1}")
        return values[-1]

    return load


def test_many_threads_share_one_load() -> None:
    cache, loads = Cache[str](), list[str]()
    started = threading.Barrier(16)

    def get(_: int) -> str:
        started.wait(TIMEOUT)
        return cache.get("key", counted(loads))

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(get, range(16))) == ["load 1"] * 16
    assert loads == ["load 1"]


def test_two_keys_load_in_parallel() -> None:
    cache, both = Cache[int](), threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:  # the barrier breaks if one load waits for the other
        found = pool.map(lambda key: cache.get(key, lambda: both.wait(TIMEOUT)), "ab")
        assert {*found} == {0, 1}


@pytest.mark.parametrize("change", ["content", "time", "replacement", "removal"])
def test_a_value_is_loaded_again_when_its_file_changes(file: Path, change: str) -> None:
    cache, loads = Cache[str](), list[str]()
    for _ in range(2):
        assert cache.get("key", counted(loads), [file]) == "load 1"
    before = file.stat()
    if change == "content":
        file.write_text("longer")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # the size alone
    elif change == "time":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000))
    elif change == "replacement":
        new = file.with_name("new")
        new.write_text("two")
        os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))  # the inode alone
        new.replace(file)
    else:
        file.unlink()
    for _ in range(2):
        assert cache.get("key", counted(loads), [file]) == "load 2"


def test_a_file_that_changes_while_it_is_loaded_is_loaded_again(file: Path) -> None:
    cache = Cache[str]()

    def load() -> str:
        content = file.read_text()
        file.write_text("changed")
        return content

    assert cache.get("key", load, [file]) == "one"
    assert cache.get("key", load, [file]) == "changed"


def test_a_failed_load_is_raised_and_tried_again() -> None:
    cache = Cache[str]()

    def fail() -> str:
        raise RuntimeError("broken")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            cache.get("key", fail)
    assert cache.get("key", lambda: "loaded") == "loaded"
