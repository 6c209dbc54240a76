"""Stored conversations: a row of the database is data and never code; files are the owner's only.

The tests set LANGGRAPH_STRICT_MSGPACK for LangGraph; what is shown here must not depend on it, so
the commands run without it, and the savers of LangGraph's default are made by name.
"""

import json
import os
import pickle
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from commands import Ran, one_line, run_process
from doubles import by_task
from fake_openai import FakeOpenAI
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command, Interrupt, Overwrite, Send

from hopgate.graphs.checkpoints import serializer, sqlite_saver

QUESTION = "Who designed Farrick Head Lighthouse?"
CONFIG: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


# Rows of an attacker


def _packed(code: int, *parts: Any) -> Any:
    return ormsgpack.Ext(code, ormsgpack.packb(parts))


class _Unpickled:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def _rows(command: str) -> dict[str, tuple[str, bytes]]:
    """Return values as a saver stores them, which would run a shell command when they are read."""
    call = _packed(0, "os", "system", command)
    message = {"content": call, "type": "human"}
    values = {
        "arguments": _packed(1, "os", "system", [command]),
        "a method": _packed(3, "os", "path", command, "os.system"),
        "pydantic 1": _packed(4, "os", "system", {"command": command}),
        "pydantic 2": _packed(5, "os", "system", {"command": command}, "model_validate_json"),
        "a class": _packed(1, "subprocess", "Popen", [["sh", "-c", command]]),
        "in a list": [{"x": [call]}],
        "in a snapshot": ormsgpack.Ext(7, ormsgpack.packb(call)),
        "in a message": _packed(5, "langchain_core.messages.human", "HumanMessage", message),
    }
    called = {"type": "constructor", "id": ["os", "system"], "args": [command]}
    return {name: ("msgpack", ormsgpack.packb(value)) for name, value in values.items()} | {
        "json": ("json", json.dumps({"lc": 2, **called}).encode()),
        "langchain's json": ("json", json.dumps({"lc": 1, **called}).encode()),
        "a pickle": ("pickle", pickle.dumps(_Unpickled(command))),
    }


HARMLESS = ("a method", "json", "langchain's json", "a pickle")
"""Rows that LangGraph refuses by default; the rest run."""
NAMES = list(_rows(""))
DANGEROUS = [name for name in NAMES if name not in HARMLESS]


def permissive() -> JsonPlusSerializer:
    """LangGraph's serializer as it is without LANGGRAPH_STRICT_MSGPACK."""
    return JsonPlusSerializer(allowed_msgpack_modules=True)


@pytest.mark.parametrize("name", NAMES)
def test_no_value_runs_code(tmp_path: Path, name: str) -> None:
    proof = tmp_path / "proof"
    row = _rows(f"touch '{proof}'")[name]
    try:
        found = serializer().loads_typed(row)
    except (NotImplementedError, ValueError):
        assert name in HARMLESS
    else:
        assert str(proof) in str(found)  # it is data
    assert not proof.exists()
    if name in DANGEROUS:  # the row is a real one
        permissive().loads_typed(row)
        _wait_for(proof)


def _wait_for(file: Path) -> None:
    """Wait for a process that was started to write a file."""
    limit = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < limit
        time.sleep(0.01)


@asynccontextmanager
async def opened(file: Path, *, strict: bool) -> AsyncIterator[Any]:
    """Open a file of checkpoints with the saver that hopgate opens, or with LangGraph's own."""
    if strict:
        async with sqlite_saver(file) as saver:
            yield saver
    else:
        async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
            saver.serde = permissive()
            yield saver


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


async def _store(database: Path, value: Any, *, strict: bool) -> None:
    async with opened(database, strict=strict) as saver:
        at = await saver.aput(CONFIG, empty_checkpoint(), {}, {})
        await saver.aput_writes(at, [("messages", value)], "task")


async def _stored(database: Path, *, strict: bool = True) -> Any:
    async with opened(database, strict=strict) as saver:
        found = await saver.aget_tuple(CONFIG)
    ((_, _, value),) = found.pending_writes
    return value


@pytest.mark.parametrize("name", ["arguments", "pydantic 2", "in a message"])
async def test_a_poisoned_row_of_a_database_is_data(
    database: Path, tmp_path: Path, name: str
) -> None:
    proof = tmp_path / "proof"
    await _store(database, "x", strict=True)
    row = _rows(f"touch '{proof}'")[name]
    with sqlite3.connect(database) as opened_file:
        assert opened_file.execute("UPDATE writes SET type = ?, value = ?", row).rowcount
    assert str(proof) in str(await _stored(database))
    assert not proof.exists()
    await _stored(database, strict=False)
    assert proof.exists()  # as LangGraph's own serializer has it


# What hopgate stores

MESSAGES = [
    HumanMessage("When?", id="1", name="ada"),
    AIMessage("In 1858 [1].", id="2", additional_kwargs={"citations": [{"number": 1}]}),
    AIMessage("", id="3", tool_calls=[{"name": "clock", "args": {}, "id": "c"}]),
    ToolMessage("12:00", tool_call_id="c", id="4", artifact={"utc": True}),
    SystemMessage([{"type": "text", "text": "Answer in German."}], id="5"),
    AIMessageChunk("In", id="6"),
    RemoveMessage("1"),
]
VALUES: list[Any] = [
    MESSAGES,
    Document("text", metadata={"page": 3}),
    [Send("retrieve", {"x": 1}), Command(goto="generate"), Interrupt("why?", id="i")],
    Overwrite([{"query": "q", "passage_ids": [], "thought": ""}]),
    {"hops": [{"query": "schön 🙂"}], "ms": {"gate": 1.5}, "none": None, "yes": True},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("strict", [False, True])  # False: by an earlier version
async def test_what_is_stored_is_read_as_it_was(database: Path, value: Any, strict: bool) -> None:
    await _store(database, value, strict=strict)
    assert await _stored(database) == value


class Ticket(tuple[int]):
    """A type of an app's own."""


def test_an_app_can_name_types_of_its_own() -> None:
    row = "msgpack", ormsgpack.packb(_packed(0, __name__, "Ticket", [7]))
    assert serializer().loads_typed(row) == [7]
    found = serializer().with_msgpack_allowlist([Ticket]).loads_typed(row)
    assert isinstance(found, Ticket)


# hopgate ask --thread


@pytest.fixture
def talk(run: Callable[..., Ran], fake: FakeOpenAI) -> Callable[[], Ran]:
    def once() -> Ran:
        fake.answers(by_task(direct="Nobody knows."))
        return run("ask", QUESTION, "--strategy", "none", "--thread", "t")

    return once


def _poison_the_answer(file: Path, command: str) -> None:
    """Put a call of `os.system` where the last answer was; the rest stays a conversation."""
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT checkpoint_id, checkpoint FROM checkpoints").fetchall()
        for name, content in rows:
            checkpoint = ormsgpack.unpackb(content, ext_hook=ormsgpack.Ext)
            checkpoint["channel_values"]["answer"] = _packed(1, "os", "system", [command])
            changed = ormsgpack.packb(checkpoint), name
            database.execute("UPDATE checkpoints SET checkpoint=? WHERE checkpoint_id=?", changed)


def test_a_poisoned_conversation_goes_on_and_runs_nothing(
    talk: Callable[[], Ran], fake: FakeOpenAI, home: Path, tmp_path: Path
) -> None:
    assert talk().code == 0
    fake.answers(by_task(direct="Nobody knows.", condense=QUESTION))
    proof = tmp_path / "proof"
    _poison_the_answer(home / "threads.sqlite", f"touch '{proof}'")
    line = ("ask", QUESTION, "--strategy", "none", "--thread", "t")
    ran = run_process(*line, LANGGRAPH_STRICT_MSGPACK="false")  # LangGraph's own default
    assert ran.code == 0, ran.err
    assert not proof.exists()


@pytest.mark.parametrize("name", ["arguments", "a pickle"])
def test_a_conversation_that_is_none_runs_nothing(
    talk: Callable[[], Ran], home: Path, tmp_path: Path, name: str
) -> None:
    assert talk().code == 0
    proof = tmp_path / "proof"
    with sqlite3.connect(home / "threads.sqlite") as database:
        row = _rows(f"touch '{proof}'")[name]
        database.execute("UPDATE checkpoints SET type = ?, checkpoint = ?", row)
    assert talk().code == 1
    assert not proof.exists()


# Who can read them


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def loose() -> Iterator[None]:
    """The umask of a system whose users read each other's files."""
    before = os.umask(0o002)
    yield
    os.umask(before)


@pytest.mark.usefixtures("loose")
def test_conversations_are_the_owners_only(
    talk: Callable[[], Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "deep" / "home"
    monkeypatch.setenv("HOPGATE_HOME", str(home))
    assert talk().code == 0
    assert mode(home) == 0o700
    assert {mode(file) for file in home.iterdir()} == {0o600}


@pytest.mark.usefixtures("loose")
@pytest.mark.parametrize("linked", [False, True])
def test_an_existing_home_and_its_files_are_closed_to_others(
    talk: Callable[[], Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o775)
    home = real
    if linked:
        home = tmp_path / "link"
        home.symlink_to(real)
    monkeypatch.setenv("HOPGATE_HOME", str(home))
    with sqlite3.connect(real / "threads.sqlite") as database:  # a process that was killed
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE x (y)")
        database.commit()
        assert {mode(file) for file in real.iterdir()} == {0o644}
        assert len(list(real.iterdir())) == 3
        assert talk().code == 0
        assert mode(real) == 0o700
        assert {mode(file) for file in real.iterdir()} == {0o600}
    database.close()


def test_a_home_that_all_users_share_is_refused_and_stays_as_it_is(
    talk: Callable[[], Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("HOPGATE_HOME", str(shared))
    one_line(talk(), 1, str(shared), "all users share it", "HOPGATE_HOME")
    assert mode(shared) == 0o1777
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("name", ["", "threads.sqlite"])
def test_conversations_that_cannot_be_closed_to_others_are_not_written(
    talk: Callable[[], Ran], home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The refusal is a fake: the tests may run as root, which may change every mode."""
    foreign = home / name
    (home / "threads.sqlite").touch()
    home.chmod(0o700)
    foreign.chmod(0o775)
    change = Path.chmod

    def refuse(path: Path, mode: int) -> None:
        if path == foreign:
            raise PermissionError(1, "Operation not permitted", str(path))
        change(path, mode)

    monkeypatch.setattr(Path, "chmod", refuse)
    one_line(talk(), 1, str(foreign), "Operation not permitted", "HOPGATE_HOME")
    assert (home / "threads.sqlite").read_bytes() == b""
