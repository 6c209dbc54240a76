"""The journal on disk, and acting on many items concurrently."""

import asyncio
import json
import resource
from pathlib import Path

import pytest

from hopgate.evaluation.measuring.journal import Journal, stored_settings
from hopgate.evaluation.measuring.runner import for_each

SETTINGS = {"model": "a", "gate": {"name": "ta-are", "date": True}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "rows.jsonl"


def stored(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text(encoding="utf-8").splitlines()]


def filled(path: Path, *ids: str) -> None:
    with Journal(path, SETTINGS) as journal:
        for each in ids:
            journal.append({"id": each, "text": f"é {each}"})


def test_rows_are_read_again_with_the_same_settings(path: Path) -> None:
    filled(path, "1", "2")
    with Journal(path, json.loads(json.dumps(SETTINGS))) as journal:
        assert list(journal.done) == ["1", "2"]
        assert journal.done["2"] == {"id": "2", "text": "é 2"}
        journal.append({"id": "3", "text": "\ud800"})
        assert stored(path) == ["1", "2", "3"]  # on the disk at once
        with pytest.raises(RuntimeError, match="in use by another process"):
            Journal(path, SETTINGS)
    with Journal(path, SETTINGS) as journal:
        assert journal.done["3"]["text"] == "\ud800"
    assert stored_settings(path) == SETTINGS


@pytest.mark.parametrize("torn", ['{"id": "3", "te', '{"id": "3"}', "\0\0\0"])
def test_a_last_line_without_an_end_is_dropped(path: Path, torn: str) -> None:
    filled(path, "1", "2")
    with path.open("a") as file:
        file.write(torn)
    with Journal(path, SETTINGS) as journal:
        assert list(journal.done) == ["1", "2"]
        journal.append({"id": "3"})
    with Journal(path, SETTINGS) as journal:
        assert list(journal.done) == ["1", "2", "3"]


def test_other_settings_are_refused_by_name(path: Path) -> None:
    filled(path, "1")
    other = SETTINGS | {"model": "b", "data": None}
    with pytest.raises(ValueError) as caught:
        Journal(path, other)
    message = str(caught.value)
    for part in (
        str(path),
        "model: 'a' in the file, 'b' now",
        "data: 'unset' in the file, None now",
    ):
        assert part in message
    assert "--overwrite" in message
    assert "another --out" in message
    assert "gate" not in message
    filled(path, "2")  # nothing was changed or kept locked


def test_overwriting_starts_again(path: Path) -> None:
    filled(path, "1")
    with Journal(path, {"model": "b"}, overwrite=True) as journal:
        assert journal.done == {}
    assert stored_settings(path) == {"model": "b"}
    assert path.read_bytes() == b""


@pytest.mark.parametrize("line", ["{", "{}"])
def test_a_damaged_row_is_named(path: Path, line: str) -> None:
    filled(path, "1")
    with path.open("a") as file:
        file.write(f'{line}\n{{"id": "3"}}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: .*--overwrite"):
        Journal(path, SETTINGS)


def test_rows_without_settings_are_refused(path: Path) -> None:
    filled(path, "1")
    path.with_name("rows.settings.json").unlink()
    with pytest.raises(ValueError, match="model: 'unset' in the file, 'a' now"):
        Journal(path, SETTINGS)


def test_damaged_settings_are_named(path: Path) -> None:
    filled(path, "1")
    path.with_name("rows.settings.json").write_text("{")
    with pytest.raises(ValueError, match=r"rows\.settings\.json cannot be read: not JSON"):
        Journal(path, SETTINGS)


def test_a_full_disk_never_leaves_part_of_a_row(path: Path) -> None:
    with Journal(path, SETTINGS) as journal:
        journal.append({"id": "1"})
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
        try:
            for each in ("2", "3"):
                with pytest.raises(RuntimeError, match=r"rows\.jsonl cannot be written to"):
                    journal.append({"id": each, "text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert path.read_text() == '{"id": "1"}\n'
        journal.append({"id": "4"})
    with Journal(path, SETTINGS) as journal:
        assert list(journal.done) == ["1", "4"]


# Many at once


async def test_concurrency_is_limited_and_all_items_are_done() -> None:
    running, most, done = 0, 0, list[int]()

    async def act(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (item % 3))
        running -= 1
        return item

    await for_each(range(20), act, 3, done.append)
    assert most == 3
    assert sorted(done) == list(range(20))
    assert done != sorted(done)  # handed on as they come


async def test_an_error_stops_new_work_and_finishes_what_is_running() -> None:
    started, done = list[int](), list[int]()

    async def act(item: int) -> int:
        started.append(item)
        await asyncio.sleep(0.02 if item else 0.001)
        if item == 0:
            raise RuntimeError("down")
        return item

    with pytest.raises(RuntimeError, match="down"):
        await for_each(range(20), act, 3, done.append)
    assert started == [0, 1, 2]
    assert done == [1, 2]


async def test_cancelling_abandons_what_is_running() -> None:
    done = list[int]()

    async def act(item: int) -> int:
        await asyncio.sleep(0 if item == 0 else 60)
        return item

    task = asyncio.create_task(for_each(range(4), act, 2, done.append))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [0]
