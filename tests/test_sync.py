"""Calling the graph without await: from a plain script, and inside a running loop's thread."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from doubles import CORRANE, LIGHT, FixedRetriever, FixedRouter, TalkingModel, by_task
from fake_openai import FakeOpenAI, Reply
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph.state import CompiledStateGraph

from hopgate import Context, build_graph
from hopgate.common.threads import wait_for
from hopgate.graphs import events
from hopgate.models.chat import ModelError

QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."
TWO_HOPS: dict[str, Any] = {
    "gate": "[Yes]",
    "reason": [FACT, "So the answer is: Lissmere."],
    "answer": "Lissmere",
}
THREAD: Any = {"configurable": {"thread_id": "1"}}
Graph = CompiledStateGraph[Any, Context, Any, Any]


def build(saver: BaseCheckpointSaver[str] | None = None) -> Graph:
    retriever = FixedRetriever([LIGHT], [CORRANE])
    return build_graph(saver, router=FixedRouter("C"), retriever=retriever)


def test_invoke_takes_every_step_of_the_loop(fake: FakeOpenAI) -> None:
    fake.answers(by_task(**TWO_HOPS))
    result = build().invoke({"question": QUESTION})
    assert (result["answer"], len(result["hops"])) == ("Lissmere", 2)
    assert result["usage"]["llm_calls"] == 4


async def test_invoke_works_in_the_thread_of_a_running_loop(fake: FakeOpenAI) -> None:
    fake.answers(by_task(**TWO_HOPS))
    assert build().invoke({"question": QUESTION})["answer"] == "Lissmere"
    fake.answers(by_task(**TWO_HOPS))
    assert (await build().ainvoke({"question": QUESTION}))["answer"] == "Lissmere"


def test_a_plain_script_can_invoke_and_ends(fake: FakeOpenAI, tmp_path: Path) -> None:
    fake.answers(by_task(direct="Lissmere"))
    script = tmp_path / "script.py"
    script.write_text(
        "from hopgate import Context, graph\n"
        "context = Context(strategy='none', model='openai:fake')\n"
        f"for _ in range(2):\n    print(graph.invoke({{'question': {QUESTION!r}}}, context=context)"
        "['answer'])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Lissmere\nLissmere\n", "")


def test_batch_answers_every_question(fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct=lambda text: f"about {text.split('?')[0][-1]}"))
    questions: Any = [{"question": f"What is {letter}?"} for letter in "pqrs"]
    found = build().batch(questions, context=Context(strategy="none"))
    assert [each["answer"] for each in found] == ["about p", "about q", "about r", "about s"]


def test_stream_yields_events_of_the_loop_and_the_answer_s_tokens(fake: FakeOpenAI) -> None:
    fake.answers(by_task(**TWO_HOPS))
    parts = build().stream(
        {"question": QUESTION}, stream_mode=["custom", "messages"], subgraphs=True
    )
    found = [event for _, mode, part in parts if (event := events.read(mode, part))]
    names = [event["event"] for event in found]
    assert [name for name in names if name != "token"] == [
        *("gate", "route", "hop", "thought", "hop", "thought", "stop", "answering", "answer")
    ]
    assert [event["text"] for event in found if event["event"] == "token"] == ["Lissmere"]


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield InMemorySaver()
    else:
        with SqliteSaver.from_conn_string(str(tmp_path / "threads.sqlite")) as sqlite:
            yield sqlite


def test_a_conversation_can_be_stopped_edited_resumed_and_continued(
    fake: FakeOpenAI, saver: BaseCheckpointSaver[str]
) -> None:
    graph = build(saver)
    fake.answers(by_task(**TWO_HOPS))
    graph.invoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    graph.update_state(THREAD, {"decision": {"strategy": "single"}})
    result = graph.invoke(None, THREAD)
    assert (result["answer"], len(result["hops"])) == ("Lissmere", 1)
    fake.answers(by_task(condense="Who?", gate="[No]", direct="Nobody"))
    assert graph.invoke({"question": "And who?"}, THREAD)["answer"] == "Nobody"
    assert graph.get_state(THREAD).next == ()


def test_an_error_of_a_node_reaches_the_caller(fake: FakeOpenAI) -> None:
    fake.says(Reply(status=400, error="too long"))
    with pytest.raises(ModelError, match="too long"):
        build().invoke({"question": QUESTION})


def test_one_loop_serves_all_calls_and_threads(fake: FakeOpenAI) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    threads = [threading.Thread(target=lambda: wait_for(note())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loops) == 4 and len(set(loops)) == 1


def test_invoke_inside_a_node_s_own_loop_is_refused_instead_of_waiting_forever() -> None:
    nested = build_graph(model=TalkingModel(say=lambda *_: "x"))

    async def inside() -> Any:
        return nested.invoke({"question": QUESTION}, context=Context(strategy="none"))

    with pytest.raises(RuntimeError, match="ainvoke"):
        wait_for(inside())
