"""What a message asks for, by rules; and what is searched for."""

import json
from pathlib import Path
from typing import Any

import pytest
from doubles import LIGHT, FixedRetriever, FixedRouter, by_task
from fake_openai import FakeOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from hopgate import Context, build_graph
from hopgate.nodes.texts.message import QUERY_CHARS, classify, query

FOLDER = Path(__file__).parents[1] / "benchmarks/messages"
ROWS = [
    json.loads(line)
    for name in ("follow_ups", "first")
    for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
]
PASTED = "The harbour was quiet. Boats lay at the quay, and nobody spoke. " * 40

# The form in which clients send their own tasks; the words are ours.
TITLE = """### Task:
Name this chat in three words.
### Output:
JSON: {"title": "…"}
### Chat History:
<chat_history>
USER: In what year was Skerrane Light first lit?
ASSISTANT: In 1858.
</chat_history>"""
PLAIN_TITLE = "Write a short title for the conversation.\n\nUser: When was it lit?\nAI: In 1858."


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_rules_know_the_messages_of_the_benchmark(row: dict[str, Any]) -> None:
    names = {"user": "human", "assistant": "ai"}
    said = [(names[each["role"]], each["content"]) for each in row["history"]]
    found = classify(row["message"], said)
    assert (found["kind"] == "question") is (row["needs"] == "search"), found


@pytest.mark.parametrize("task", [TITLE, PLAIN_TITLE])
async def test_a_client_s_own_task_is_one_call_with_its_own_words(
    fake: FakeOpenAI, task: str
) -> None:
    fake.says('{"title": "First Lit"}')
    retriever = FixedRetriever([LIGHT])
    graph = build_graph(retriever=retriever, instructions="Be brief.")
    result = await graph.ainvoke({"question": task}, context=Context(gate="always"))
    assert result["decision"]["message"]["kind"] == "client_task"
    assert (result["answer"], retriever.queries) == ('{"title": "First Lit"}', [])
    assert [body["messages"] for body in fake.requests] == [[{"role": "user", "content": task}]]


def test_a_question_about_titles_is_not_a_client_s_task() -> None:
    assert classify("Suggest a title for our annual report", [])["kind"] == "question"
    assert classify("What is the title of the chat with Ada?", [])["kind"] == "question"


@pytest.mark.parametrize(
    ("message", "calls"), [("hello!", 1), ("Write a haiku", 1), (f"Summarise this:\n{PASTED}", 1)]
)
async def test_what_needs_no_search_is_one_call(fake: FakeOpenAI, message: str, calls: int) -> None:
    fake.answers(by_task(direct="x"))
    result = await build_graph(router=FixedRouter("B")).ainvoke({"question": message})
    assert (len(fake.requests), result["usage"]["retrieval_steps"]) == (calls, 0)
    assert fake.requests[0]["messages"][-1]["content"] == message.strip()
    assert result["decision"]["gate"]["mode"] == "rules"


async def test_named_gates_strategies_and_short_answers_do_as_they_say(fake: FakeOpenAI) -> None:
    for context in (
        Context(gate="always"),
        Context(strategy="single"),
        Context(gate="ta-are", answers="short"),
    ):
        fake.answers(by_task(gate="[Yes]", answer="x"))
        retriever = FixedRetriever([LIGHT])
        graph = build_graph(router=FixedRouter("B"), retriever=retriever)
        await graph.ainvoke({"question": "hello!"}, context=context)
        assert retriever.queries == ["hello!"]


async def test_a_follow_up_about_the_conversation_is_not_searched_for(fake: FakeOpenAI) -> None:
    graph = build_graph(InMemorySaver(), router=FixedRouter("B"))
    thread: Any = {"configurable": {"thread_id": "1"}}
    fake.answers(by_task(direct="Nice to meet you!", condense="[conversation]"))
    await graph.ainvoke({"question": "My name is Ada, and I work in Tarvock."}, thread)
    fake.requests.clear()
    for question, calls, source in (
        ("Where do I work?", 1, "rules"),
        ("Is that in the north or in the south, did you gather?", 2, "model"),
    ):
        fake.requests.clear()
        result = await graph.ainvoke({"question": question}, thread)
        assert result["decision"]["message"]["kind"] == "conversation"
        assert result["decision"]["message"]["source"] == source
        assert result["decision"]["gate"]["mode"] == source
        assert len(fake.requests) == calls
        contents = [each["content"] for each in fake.requests[-1]["messages"]]
        assert contents[1:3] == ["My name is Ada, and I work in Tarvock.", "Nice to meet you!"]
        assert contents[-1] == question


async def test_a_kind_edited_in_the_state_is_followed(fake: FakeOpenAI) -> None:
    graph = build_graph(InMemorySaver(), router=FixedRouter("B"), retriever=FixedRetriever([LIGHT]))
    thread: Any = {"configurable": {"thread_id": "1"}}
    await graph.ainvoke({"question": "hello!"}, thread, interrupt_after=["start"])
    edited = {"kind": "question", "source": "rules", "reason": "a person said so"}
    await graph.aupdate_state(thread, {"decision": {"message": edited}})
    fake.answers(by_task(gate="[Yes]", answer="x"))
    assert (await graph.ainvoke(None, thread))["usage"]["retrieval_steps"] == 1


def test_a_short_message_is_its_own_query() -> None:
    text = "It is late.\nWho lit the lamp?"
    assert query(text) == text


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (f"{PASTED}\n\nWho rang the bell?", "Who rang the bell?"),
        (f"Who rang the bell? And when?\n{PASTED}", "Who rang the bell? And when?"),
        (f"{PASTED}\nTell me who rang the bell", "Tell me who rang the bell"),
    ],
)
def test_a_long_message_is_searched_for_by_its_question(message: str, expected: str) -> None:
    assert query(message) == expected


def test_a_query_is_never_longer_than_allowed() -> None:
    assert len(query("why? " * 5_000)) <= QUERY_CHARS
    assert len(query("x" * 5_000, 40)) <= 40
