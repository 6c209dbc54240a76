"""The examples, each run as its docstring says: over HTTP, as a command or as a tool."""

import importlib.util
import json
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import httpx
import pytest
from doubles import by_task
from fake_openai import FakeOpenAI, Messages, Reply
from langchain_openai.chat_models import _client_utils
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_dev import Server, free_port, running

from hopgate.nodes.prompts.templates import VANILLA

EXAMPLES = Path(__file__).parents[1] / "examples"
PASSWORD = "s3cret-1f6b"
SLOW = 120  # timeout in seconds, for a busy machine
LIGHT = "In what year was Skerrane Light first lit?"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SLOW
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


ASKING = {"HOPGATE_LIMITS": '{"gate": ["ta-are"]}'}
"""The gate asks the model, so that scripted replies decide and not what the collection holds."""


# FastAPI


@contextmanager
def serving(folder: Path, postgres: str, fake: FakeOpenAI) -> Iterator[Server]:
    """Run the example in its own process on loopback."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_app:app"]
    env = {
        "HOPGATE_HOME": str(folder),
        "HOPGATE_POSTGRES": postgres.replace("postgres@", f"postgres:{PASSWORD}@"),
        "OPENAI_API_KEY": "sk-app-1f6b0c9d2e",
        "OPENAI_BASE_URL": fake.base_url,
        **ASKING,
    }
    given = [*command, "--port", str(port), "--timeout-graceful-shutdown", "5"]
    with running(given, folder, port, env=env, ready="/openapi.json") as server:
        yield server


@pytest.fixture(scope="module")
def app(
    _fake_server: FakeOpenAI, postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("app"), postgres, _fake_server) as server:
        yield server


def put(app: Server, thread: str, question: str, **more: Any) -> list[dict[str, Any]]:
    """Ask, and return the stream's events: each one's data, and its name as `event`."""
    asked = {"thread": thread, "question": question, **more}
    response = httpx.post(f"{app.url}/ask", json=asked, timeout=SLOW)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.split("\n\n"):
        if not block or block.startswith(":"):  # a heartbeat
            continue
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        found.append({**json.loads(lines["data"]), "event": lines["event"]})
    return found


def history(app: Server, thread: str) -> list[tuple[str, str]]:
    response = httpx.get(f"{app.url}/threads/{thread}").raise_for_status()
    return [(each["role"], each["text"]) for each in response.json()]


@pytest.fixture
def thread() -> str:
    return str(uuid4())


def test_an_answer_is_streamed_with_every_decision_and_its_sources(
    fake: FakeOpenAI, app: Server, thread: str
) -> None:
    fake.answers(by_task(gate="[Yes]", answer="It was first lit in 1858 [1]."))
    gate, route, hop, begun, *tokens, answer, result = put(app, thread, LIGHT, alpha=0.2)
    assert (gate["event"], gate["answer"]) == ("gate", "yes")
    assert (route["event"], route["strategy"]) == ("route", "single")
    assert (hop["event"], hop["query"]) == ("hop", LIGHT)
    assert (begun["event"], begun["passages"] > 0) == ("answering", True)
    assert {each["event"] for each in tokens} == {"token"}
    assert "".join(each["text"] for each in tokens) == "It was first lit in 1858 [1]."
    assert (answer["event"], answer["text"]) == ("answer", "It was first lit in 1858 [1].")
    assert answer["citations"] == result["citations"]
    assert [each["title"] for each in result["citations"]] == [hop["passages"][0]["title"]]
    assert (result["answer"], result["decision"]["alpha"]) == ("It was first lit in 1858 [1].", 0.2)


def test_two_processes_answer_one_question_of_a_conversation_at_a_time(
    fake: FakeOpenAI, app: Server, postgres: str, thread: str, tmp_path: Path
) -> None:
    said = by_task(gate=Reply("[No]", delay=0.3), direct="Berlin", condense="Where is it?")
    fake.answers(said)
    with serving(tmp_path, postgres, fake) as other, ThreadPoolExecutor() as pool:
        asked = [(each, f"Where is {name}?") for name in "ab" for each in (app, other)]
        list(pool.map(lambda each: put(each[0], thread, each[1]), asked))
        assert [role for role, _ in history(app, thread)] == ["human", "ai"] * 4
        assert history(other, thread) == history(app, thread)


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"question": "x" * 4001}, "question", "has 4001 characters; at most 4000"),
        ({"question": "\ud800?"}, "question", "half of a character"),
        ({"question": LIGHT, "alpha": 2}, "alpha", "less than or equal to 1"),
        ({"question": LIGHT, "thread": "mine"}, "thread", "valid UUID"),
    ],
)
def test_bad_input_is_refused_with_the_field_and_costs_nothing(
    fake: FakeOpenAI, app: Server, thread: str, body: dict[str, Any], field: str, message: str
) -> None:
    response = httpx.post(
        f"{app.url}/ask",
        content=json.dumps({"thread": thread, **body}),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == 422
    (detail,) = response.json()["detail"]
    assert detail["loc"] == ["body", field]
    assert message in detail["msg"]
    assert not fake.requests
    assert httpx.get(f"{app.url}/threads/{thread}").status_code == 404


def test_a_client_that_leaves_cancels_the_run(fake: FakeOpenAI, app: Server, thread: str) -> None:
    fake.answers(
        by_task(gate=Reply("[No]", delay=0.5), direct="Berlin", condense="Where is Berlin?")
    )
    asked = {"thread": thread, "question": "Where is Berlin?"}
    with httpx.stream("POST", f"{app.url}/ask", json=asked, timeout=SLOW):
        wait_for(lambda: len(fake.requests) == 1)
    time.sleep(1)  # longer than the reply takes, after which the run would go on
    assert len(fake.requests) == 1
    assert history(app, thread) == [("human", "Where is Berlin?")]
    assert put(app, thread, "Where is Berlin?")[-1]["answer"] == "Berlin"


def test_an_error_of_the_model_is_streamed_in_one_line(
    fake: FakeOpenAI, app: Server, thread: str
) -> None:
    fake.says(Reply(status=401, error="no such key sk-app-1f6b0c9d2e"))
    failed, error = put(app, thread, LIGHT)
    assert failed["event"] == "failed"
    assert error["event"] == "error"
    assert "check OPENAI_API_KEY" in error["message"]
    assert "sk-app-1f6b0c9d2e" not in error["message"]


@pytest.mark.parametrize(
    "uri", ["", f"postgresql://user:{PASSWORD}@[bad", f"postgresql://user:{PASSWORD}@127.0.0.1:1/x"]
)
async def test_a_connection_that_fails_does_not_show_its_password(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, uri: str
) -> None:
    from psycopg_pool import PoolTimeout

    monkeypatch.setenv("HOPGATE_POSTGRES", uri)
    with pytest.raises((RuntimeError, PoolTimeout)) as caught:
        async with load("fastapi_app").connections() as pool:
            await pool.wait(0.2)
    assert caught.value.__context__ is None or caught.type is PoolTimeout
    assert PASSWORD not in f"{caught.value}{caplog.text}"
    if caught.type is PoolTimeout:
        assert "Connection refused" in caplog.text
    else:
        assert "HOPGATE_POSTGRES" in str(caught.value)


# A batch

CAPITALS = {"Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "England": "London"}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    rows = [{"id": name, "question": f"What is the capital of {name}?"} for name in CAPITALS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def capital(asked: str) -> str:
    return next(said for name, said in CAPITALS.items() if f"of {name}?" in asked)


def batch(*arguments: object) -> int:
    """Run the example as a command, in this process; return its exit code."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
        patch.setattr(sys, "argv", ["batch.py", *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / "batch.py"), run_name="__main__")
    if isinstance(caught.value.code, str):
        raise ValueError(caught.value.code)
    return int(caught.value.code or 0)


def written(path: Path) -> dict[str, str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["answer"] for row in rows}


def test_a_killed_batch_asks_only_the_remaining_questions(
    fake: FakeOpenAI, questions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"

    answered = list[str]()

    def two_only(asked: str) -> Reply | str:
        said = capital(asked)
        if len(answered) == 2:
            return Reply(said, delay=60)
        answered.append(said)
        return said

    fake.answers(by_task(gate="[No]", direct=two_only))
    command = [sys.executable, str(EXAMPLES / "batch.py"), str(questions), str(out)]
    with subprocess.Popen([*command, "--concurrency", "2"]) as process:
        wait_for(lambda: out.exists() and out.read_bytes().count(b"\n") == 2)
        process.kill()
    before = written(out)
    assert sorted(before.values()) == sorted(answered)
    with out.open("a") as file:
        file.write('{"id": "Spain", "ans')  # as a kill during a write leaves it
    fake.requests.clear()
    fake.answers(by_task(gate="[No]", direct=capital))
    assert batch(questions, out) == 0
    assert written(out) == CAPITALS
    asked = "".join(fake.prompts)
    assert {name for name in CAPITALS if f"of {name}?" in asked} == CAPITALS.keys() - before
    fake.requests.clear()
    assert batch(questions, out) == 0
    assert not fake.requests


def test_a_question_that_fails_does_not_stop_the_rest_and_is_tried_again(
    fake: FakeOpenAI, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"

    def refusing(asked: str) -> Reply | str:
        return Reply(status=400, error="refused") if "Italy" in asked else capital(asked)

    fake.answers(by_task(gate="[No]", direct=refusing))
    assert batch(questions, out) == 1
    assert written(out) == {name: said for name, said in CAPITALS.items() if name != "Italy"}
    (failed,) = [line for line in capsys.readouterr().err.splitlines() if "FAILED" in line]
    assert "Italy" in failed and "refused" in failed
    fake.answers(by_task(gate="[No]", direct=capital))
    assert batch(questions, out) == 0
    assert written(out) == CAPITALS


@pytest.mark.parametrize("line", ["{", "[]", '{"id": 1}', '"x"'])
def test_a_malformed_row_is_named_by_its_line(questions: Path, tmp_path: Path, line: str) -> None:
    with questions.open("a") as file:
        file.write(line)
    with pytest.raises(ValueError, match=r"questions\.jsonl:5: needs `id` and `question`"):
        batch(questions, tmp_path / "out.jsonl")


# A tool of a ReAct agent


@pytest.fixture(autouse=True)
def own_client() -> Iterator[None]:
    """Forget the client that LangChain keeps: its connections belong to one test's event loop."""
    yield
    _client_utils._cached_async_httpx_client.cache_clear()


def calls_tool(*questions: str) -> Reply:
    """A reply of a model that calls the tool, once for each question."""
    calls = [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": "look_up", "arguments": json.dumps({"question": question})},
        }
        for number, question in enumerate(questions)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return Reply(
        body=json.dumps(
            {"id": "1", "object": "chat.completion", "created": 0, "choices": [choice]}
            | {"model": "fake"}
        ).encode()
    )


def agent_says(*replies: Reply | str, **nodes: Any) -> Any:
    """Script the agent's own calls in their order, and hopgate's by node."""
    left, of_hopgate = list(replies), by_task(**nodes)

    def script(messages: Messages) -> Any:
        asked_by_agent = messages[0]["role"] == "system" and "look_up" in messages[0]["content"]
        return left.pop(0) if asked_by_agent else of_hopgate(messages)

    return script


async def test_an_agent_looks_up_with_hopgate_and_keeps_its_own_conversation(
    fake: FakeOpenAI,
) -> None:
    harbour = "Who designed Farrick Head Lighthouse?"
    fake.answers(
        agent_says(
            calls_tool(LIGHT, harbour),
            "1858, and Caddoc Fairlow.",
            "As I said: 1858.",
            answer=lambda asked: "1858 [1]" if LIGHT in asked else "Caddoc Fairlow [1]",
            reason=lambda asked: "So the answer is: 1858." if LIGHT in asked else "Fairlow.",
        )
    )
    agent = load("react_agent").build_agent(InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    state = await agent.ainvoke({"messages": [("user", "When, and by whom?")]}, thread)
    asked, called, *told, answered = state["messages"]
    assert (asked.type, called.type, answered.text) == ("human", "ai", "1858, and Caddoc Fairlow.")
    results = [json.loads(each.content) for each in told]
    assert [each["answer"] for each in results] == ["1858 [1]", "Caddoc Fairlow [1]"]
    assert all(each["sources"][0].keys() == {"number", "title", "quote"} for each in results)
    tools = fake.requests[0]["tools"]
    assert [each["function"]["name"] for each in tools] == ["look_up"]
    state = await agent.ainvoke({"messages": [("user", "Again?")]}, thread)
    assert [each.type for each in state["messages"]][-2:] == ["human", "ai"]
    assert len(state["messages"]) == 7


async def test_errors_of_the_tool_reach_the_agent(fake: FakeOpenAI) -> None:
    fake.answers(agent_says(calls_tool(""), "I could not look it up."))
    agent = load("react_agent").build_agent()
    state = await agent.ainvoke({"messages": [("user", "When?")]})
    *_, told, answered = state["messages"]
    assert "the question is empty" in json.loads(told.content)["error"]
    assert answered.text == "I could not look it up."


# LangChain's faces: middleware and a retriever


def decided(verdict: str, answer: str) -> Callable[[Messages], str]:
    """A script: the gate's verdict, and the answer of the example's own model."""
    return lambda messages: verdict if VANILLA in str(messages) else answer


def run_example(name: str, question: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [f"{name}.py", question])
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    _client_utils._cached_async_httpx_client.cache_clear()  # see own_client
    return capsys.readouterr().out.splitlines()


def test_the_middleware_adds_passages_only_if_they_are_needed(
    fake: FakeOpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers(decided("[Yes]", "In 1858 [1]."))
    answer, _, strategy, first, *_ = run_example("agent_middleware", LIGHT, capsys)
    assert (answer, strategy) == ("In 1858 [1].", "  strategy: single")
    assert first == "  [1] Skerrane Light (passages.jsonl)"
    assert "reef 9 kilometres off" in str(fake.requests[-1]["messages"])
    fake.answers(decided("[No]", "Eight"))
    shown = run_example("agent_middleware", "How many legs has a spider?", capsys)
    assert (shown[0], shown[2:]) == ("Eight", ["  strategy: none"])


def test_the_chain_answers_with_the_documents_that_were_found(
    fake: FakeOpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers(decided("[Yes]", "In 1858."))
    answer, *sources = run_example("retriever_chain", LIGHT, capsys)
    assert (answer, sources[0], len(sources)) == (
        "In 1858.",
        "  Skerrane Light (passages.jsonl)",
        3,
    )
    assert "reef 9 kilometres off" in str(fake.requests[-1]["messages"])
    fake.answers(decided("[No]", "Eight"))
    assert run_example("retriever_chain", "How many legs has a spider?", capsys) == ["Eight"]
    assert "Documents:\nnone" in str(fake.requests[-1]["messages"][0]["content"])


# Your own retriever and model


def test_own_parts_answer_from_their_own_notes(
    embedded: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    question = "Who keeps the key of the boat house?"
    monkeypatch.setattr(sys, "argv", ["own_parts.py", question])
    runpy.run_path(str(EXAMPLES / "own_parts.py"), run_name="__main__")
    answer, source = capsys.readouterr().out.splitlines()
    assert "Mara Lindqvist" in answer
    assert source.strip().startswith("Boat house: The key of the boat house is with Mara")
