"""`hopgate harvest`: real stores of real turns, in SQLite, PostgreSQL and a running server."""

import asyncio
import json
import re
import sqlite3
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from commands import Ran, one_line
from doubles import CORRANE, FixedRetriever, FixedRouter, TalkingModel, by_task
from fake_openai import FakeOpenAI
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph_dev import Server
from langgraph_sdk import get_client

from hopgate import Context, build_graph
from hopgate.evaluation.learning.harvest import WEIGHTS, _key, merged
from hopgate.evaluation.learning.privacy import personal
from hopgate.evaluation.measuring.datasets import read_examples
from hopgate.graphs.checkpoints import serializer, sqlite_saver
from hopgate.graphs.feedback import give_feedback

SINGLE = Context(gate="never", strategy="single")
DOWN, AGAIN = "When was Skerrane Light first lit?", "When was Skerrane Light lit at first?"
FOLLOW, STANDALONE = "And who designed it?", "Who designed Skerrane Light?"
CALM, RIGHT = "Where was Ilsabet Corrane born?", "In Lissmere"
LOST = "Who trims the wicks?"
DEEPER = Context(gate="off", escalate=4, max_hops=1)
SECRET = "Is ada@example.org the keeper?"


def say(number: int, prompt: str) -> str:
    if FOLLOW in prompt and "Standalone" in prompt:
        return STANDALONE
    return "I don't know" if AGAIN in prompt or LOST in prompt else "Born in Lissmere [1]."


async def fill(saver: Any) -> None:
    """Store a conversation with each signal, a calm question, and one with an e-mail address."""
    model = TalkingModel(say=say)
    app = build_graph(
        saver, model=model, retriever=FixedRetriever([CORRANE]), router=FixedRouter("B")
    )
    threads = {
        "user-ada-1": [DOWN, AGAIN, FOLLOW],
        "user-ada-2": [CALM],
        "user-ben-1": [SECRET, CALM],
        "user-ben-2": [LOST],
    }
    for thread, questions in threads.items():
        config: Any = {"configurable": {"thread_id": thread}, "metadata": {"owner": "ada"}}
        answers = []
        for question in questions:
            context = DEEPER if question == LOST else SINGLE
            done = await app.ainvoke({"question": question}, config, context=context)
            answers.append(done["messages"][-1].id)
        if thread == "user-ada-1":
            await give_feedback(app, config, thumbs="down", answer="1858", message_id=answers[0])
            await give_feedback(app, config, thumbs="up")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("store") / "threads.sqlite"

    async def made() -> None:
        async with sqlite_saver(file) as saver:
            await fill(saver)

    asyncio.run(made())
    return file


def rows_of(out: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {row["question"]: row for row in rows}


def check(rows: dict[str, Any]) -> None:
    """The rows of `fill`, from whatever store."""
    assert {question: row["signals"] for question, row in rows.items()} == {
        DOWN: ["corrected", "thumbs-down"],
        AGAIN: ["doubt"],
        STANDALONE: ["thumbs-up"],
        CALM: ["random"],
        LOST: ["escalated", "doubt"],
    }
    assert rows[DOWN]["answers"] == ["1858"]
    assert [question for question, row in rows.items() if "answers" in row] == [DOWN]
    today = datetime.now(UTC).date()
    assert {row["asked"] for row in rows.values()} <= {
        str(today), str(today - timedelta(days=1))
    }  # fmt: skip


def test_questions_are_drawn_from_a_file_with_their_signals_and_without_their_users(
    store: Path, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    out, before = tmp_path / "questions.jsonl", store.read_bytes()
    ran = run("harvest", store, "--out", out, "--json")
    assert ran.code == 0, ran
    check(rows_of(out))
    assert json.loads(ran.out) == {
        "out": str(out),
        "threads": 4,
        "questions": 7,
        "left_out": {"e-mail address": 1},
        "rows": 5,
        "signals": {
            "corrected": 1, "thumbs-down": 1, "escalated": 1, "doubt": 2,
            "thumbs-up": 1, "random": 1,
        },
        "answers": 1,
    }  # fmt: skip
    written = out.read_text(encoding="utf-8")
    assert not re.search("ada|ben|user-|lc_run", written)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert store.read_bytes() == before
    read = read_examples(out, answers_needed=False)  # as `hopgate label --judge silver` does
    assert sorted(each.golds for each in read) == [()] * 4 + [("1858",)]
    ids = [row["id"] for row in rows_of(out).values()]
    again = run("harvest", store, "--out", out, "--overwrite")
    assert re.search(r"^rows +5$", again.out, re.MULTILINE) and "e-mail address 1" in again.out
    assert [row["id"] for row in rows_of(out).values()] == ids


def test_what_cannot_be_harvested_is_one_line_and_writes_nothing(
    store: Path, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "questions.jsonl"
    text, empty, other = (tmp_path / name for name in ("a.txt", "e.sqlite", "o.sqlite"))
    text.write_text("no database")
    asyncio.run(_empty(empty))
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    for code, source, options, parts in (
        (1, store, ["--since", "2999-01-01"], ["no questions found", "4 threads read"]),
        (1, store, ["--exclude", "."], ["7 questions, left out", "6 excluded, 1 e-mail address"]),
        (1, empty, [], ["no questions found, nothing is written: 0 threads read"]),
        (
            2,
            tmp_path / "missing",
            [],
            ["the source is not a file", "postgresql://"],
        ),
        (2, text, [], ["cannot be read as LangGraph's SQLite checkpoints", "not a database"]),
        (2, other, [], ["cannot be read", "no such table"]),
        (2, store, ["--exclude", "("], ["--exclude '(' is not a regular expression"]),
        (
            2,
            "mysql://app:hunter2@db/x",
            [],
            ["the source is not a file", "postgresql://"],
        ),
        (2, store, ["--sample", "0"], ["--sample"]),
        (1, "http://", [], ["no answer from None"]),
        (1, "https://ada:hunter2@h:port", [], ["no answer from h: Invalid port"]),
        (1, "postgresql://ada:hunter2@127.0.0.1:9/x", [], ["PostgreSQL does not answer"]),
        (2, "postgresql://ada:hunter2@[h/x", [], ["the PostgreSQL URI cannot be used"]),
    ):
        ran = run("harvest", source, "--out", out, *options)
        one_line(ran, code, *parts)
        assert "hunter2" not in ran.err
        assert not out.exists()
    out.write_text("mine")
    one_line(run("harvest", store, "--out", out), 2, "exists; name another file")
    assert out.read_text() == "mine"
    before = store.read_bytes()
    one_line(run("harvest", store, "--out", store, "--overwrite"), 2, "is the store itself")
    assert store.read_bytes() == before


async def _empty(file: Path) -> None:
    async with sqlite_saver(file) as saver:
        await saver.setup()


def test_rows_of_other_programs_in_a_store_are_passed_over(
    store: Path, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    copy, out = tmp_path / "copy.sqlite", tmp_path / "questions.jsonl"
    copy.write_bytes(store.read_bytes())
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'user-ada-2'")
    ran = run("harvest", copy, "--out", out, "--json")
    assert json.loads(ran.out)["left_out"] == {"unreadable thread": 1, "e-mail address": 1}
    check(rows_of(out))


def test_a_database_gives_the_same_questions(
    postgres: str, tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopgate.evaluation.learning.threads.STATES_PAGE", 4)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS harvest WITH (FORCE)")
        connection.execute("CREATE DATABASE harvest")
    database = urlsplit(postgres)._replace(path="/harvest").geturl()

    async def made() -> None:
        async with AsyncPostgresSaver.from_conn_string(database, serde=serializer()) as saver:
            await saver.setup()
            await fill(saver)

    asyncio.run(made())
    out = tmp_path / "questions.jsonl"
    ran = run("harvest", database, "--out", out)
    assert ran.code == 0, ran
    check(rows_of(out))


def test_a_running_server_gives_the_questions_of_its_threads(
    dev_server: Server,
    fake: FakeOpenAI,
    tmp_path: Path,
    run: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hopgate.evaluation.learning.threads.STATES_PAGE", 4)  # several pages
    question = "Who painted the Quillard mural?"

    async def asked() -> None:
        client = get_client(url=dev_server.url, api_key=None)
        thread = (await client.threads.create())["thread_id"]
        context = {"model": "openai:fake", "gate": "never"}
        for _ in range(2):
            await client.runs.wait(thread, "hopgate", input={"question": question}, context=context)

    fake.answers(by_task(direct="Nobody knows", condense=question))
    asyncio.run(asked())
    out = tmp_path / "questions.jsonl"
    ran = run("harvest", dev_server.url, "--out", out)
    assert ran.code == 0, ran
    assert rows_of(out)[question]["signals"] == ["random"]


# What is left out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Is ada.lovelace@example.org in?", "e-mail address"),
        ("Is müller@exämple.de in?", "name after an @"),
        ("What did @ada_k write?", "name after an @"),
        ("What is at https://example.org/u/ada?", "web address"),
        ("Who is www.example.org?", "web address"),
        ("Whose is 192.168.7.21?", "network address"),
        ("Whose is 2001:db8::8a2e:370:7334?", "network address"),
        ("Whose is 00:1B:44:11:3A:B7?", "network address"),
        ("Call +49 30 1234567 or (555) 123-4567?", "long number"),
        ("Is 4111 1111 1111 1111 blocked?", "long number"),
        ("Is DE89370400440532013000 mine?", "long number"),
        ("My id is 1234567, why?", "long number"),
        ("What happened on 2023-10-05, or on 5.10.2023?", None),
        ("Who fought from 1939-1945 and 1914 – 1918?", None),
        ("Do 10,000,000 people live there, or 1.5 million?", None),
        ("Is it open 9:00-17:30 in room 12/3?", None),
        ("Is std::vector 3.12.1 slow?", None),
        ("Where does Ada Martens, 5 Mill Lane, live?", None),  # what it cannot find
    ],
)
def test_forms_that_identify_people_are_found(text: str, found: str | None) -> None:
    assert personal(text) == found


# Sampling


def test_a_sample_prefers_signals() -> None:
    rows = [
        {"id": str(at), "signals": ["corrected" if at % 2 else "random"]} for at in range(4_000)
    ]
    drawn = sorted(rows, key=_key)[-400:]
    corrected = sum(int(each["id"]) % 2 for each in drawn) / len(drawn)
    assert abs(corrected - WEIGHTS["corrected"] / (WEIGHTS["corrected"] + 1)) < 0.05


def test_a_question_that_comes_again_has_all_its_signals_and_the_newest_answer() -> None:
    old = {"id": "1", "signals": ["random"], "asked": "2026-01-01"}
    new = {"id": "1", "signals": ["corrected"], "asked": "2026-03-01", "answers": ["b"]}
    mid = {"id": "1", "signals": ["corrected"], "asked": "2026-02-01", "answers": ["a"]}
    assert merged(merged(old, new), mid) == new
