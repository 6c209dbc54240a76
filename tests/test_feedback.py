"""Feedback on answers: kept in the thread's state, through the graph and through a real server."""

from typing import Any

import httpx
import pytest
from doubles import CORRANE, LIGHT, FixedRetriever, FixedRouter, TalkingModel, by_task
from fake_openai import FakeOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph_dev import Server
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from hopgate import Context, build_graph
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.graphs.feedback import give_feedback
from hopgate.graphs.history import fork, hops
from hopgate.nodes.run.feedback import MAX_ANSWER_CHARS, UnfinishedTurn, UnknownAnswer

QUESTION = "Where was the designer of Skerrane Light born?"
OTHER = "Who drew Skerrane Light?"
THREAD: Any = {"configurable": {"thread_id": "1"}}
MULTI = Context(gate="never", strategy="multi", max_hops=2)


@pytest.fixture
def app() -> AdaptiveGraph:
    model = TalkingModel(say=lambda number, _: f"Ilsabet Corrane, answer {number} [1].")
    return build_graph(
        InMemorySaver(),
        model=model,
        retriever=FixedRetriever([LIGHT], [CORRANE]),
        router=FixedRouter("B"),
    )


async def ask(app: AdaptiveGraph, question: str = QUESTION, **config: Any) -> str:
    """Ask, and return the id of the answer's message."""
    done = await app.ainvoke({"question": question}, THREAD, context=MULTI, **config)
    return str(done["messages"][-1].id)


async def kept(app: AdaptiveGraph) -> Any:
    return (await app.aget_state(THREAD)).values["feedback"]


# In an app


async def test_feedback_is_kept_with_its_answer_and_replaced_and_taken_back(
    app: AdaptiveGraph,
) -> None:
    first = await ask(app)
    given = await give_feedback(app, THREAD, thumbs="down", answer=" Lissmere ")
    assert given is not None and given["answer"] == "Lissmere"
    second = await ask(app, OTHER)
    await give_feedback(app, THREAD, thumbs="up")
    assert {name: each["thumbs"] for name, each in (await kept(app)).items()} == {
        first: "down",
        second: "up",
    }
    await give_feedback(app, THREAD, thumbs="up", message_id=first)
    assert ((await kept(app))[first]["thumbs"], (await kept(app))[first]["answer"]) == ("up", None)
    assert await give_feedback(app, THREAD, message_id=first, answer="  ") is None
    assert list(await kept(app)) == [second]


async def test_feedback_changes_nothing_else(app: AdaptiveGraph) -> None:
    await ask(app)
    before, points = await app.aget_state(THREAD), await hops(app, THREAD)
    await give_feedback(app, THREAD, thumbs="down")
    after = await app.aget_state(THREAD)
    assert after.next == () and after.tasks == ()
    assert {**after.values, "feedback": {}} == before.values
    assert await hops(app, THREAD) == points
    branch = await fork(app, points[-1], strategy="none")
    assert (await app.ainvoke(None, branch, context=MULTI))["answer"]


async def test_feedback_goes_into_the_newest_state_whatever_the_config_names(
    app: AdaptiveGraph,
) -> None:
    first = await ask(app)
    old = (await app.aget_state(THREAD)).config
    second = await ask(app, OTHER)
    await give_feedback(app, old, thumbs="up", message_id=first)
    state = await app.aget_state(THREAD)
    assert list(state.values["feedback"]) == [first]
    assert state.values["messages"][-1].id == second


async def test_feedback_that_cannot_be_kept_is_refused_and_nothing_is_stored(
    app: AdaptiveGraph,
) -> None:
    with pytest.raises(UnknownAnswer, match="no answer yet"):
        await give_feedback(app, THREAD, thumbs="up")
    await ask(app)
    for given, expected in (
        ({"message_id": "x"}, "no answer with the message id 'x'"),
        ({"thumbs": "sideways"}, "thumbs is 'sideways'; use 'up', 'down'"),
        ({"answer": "the !"}, "the right answer is 'the !'; give one with words"),
        ({"answer": "x" * (MAX_ANSWER_CHARS + 1)}, f"at most {MAX_ANSWER_CHARS} are allowed"),
        ({"answer": "\ud800"}, "half of a character"),
    ):
        values: Any = given
        with pytest.raises(ValueError, match=expected):
            await give_feedback(app, THREAD, **values)
    edit = {"feedback": {"x": {"thumbs": "up", "answer": 1, "at": "now"}}}
    with pytest.raises(
        ValueError, match=r"feedback\.x\.answer is 1: input should be a valid string"
    ):
        await app.aupdate_state(THREAD, edit)
    assert await kept(app) == {}


async def test_a_paused_turn_takes_no_feedback_and_goes_on(app: AdaptiveGraph) -> None:
    """A new checkpoint would start its loop again."""
    await ask(app)
    await app.ainvoke({"question": OTHER}, THREAD, context=MULTI, interrupt_before=["generate"])
    with pytest.raises(UnfinishedTurn, match="not answered yet"):
        await give_feedback(app, THREAD, thumbs="down")
    assert (await app.ainvoke(None, THREAD, context=MULTI))["answer"]
    assert await give_feedback(app, THREAD, thumbs="down")


# On a server


@pytest.fixture
def client(dev_server: Server) -> LangGraphClient:
    return get_client(url=dev_server.url, api_key=None)


@pytest.fixture
def web(dev_server: Server) -> Any:
    with httpx.Client(base_url=dev_server.url, timeout=60) as web:
        yield web


async def test_the_route_keeps_feedback_in_the_thread_and_names_what_is_wrong(
    client: LangGraphClient, web: httpx.Client, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(direct="Nobody knows"))
    thread = (await client.threads.create())["thread_id"]

    def give(status: int, **body: Any) -> Any:
        response = web.post("/hopgate/feedback", json={"thread_id": thread, **body})
        assert response.status_code == status, response.text
        assert "nosniff" in response.headers["X-Content-Type-Options"]
        return response.json()

    assert "no answer yet" in give(404, thumbs="up")["detail"]
    context = {"model": "openai:fake", "gate": "never"}
    done: Any = await client.runs.wait(
        thread, "hopgate", input={"question": QUESTION}, context=context
    )
    rated = done["messages"][-1]["id"]
    said = give(200, thumbs="down", answer="Lissmere")
    assert (said["message_id"], said["feedback"]["answer"]) == (rated, "Lissmere")
    state: Any = await client.threads.get_state(thread)
    assert state["values"]["feedback"] == {rated: said["feedback"]}
    assert state["next"] == []
    for status, body, detail in (
        (404, {"message_id": "x"}, "no answer with the message id 'x'"),
        (404, {"thread_id": "0192d2a4-0000-7000-8000-000000000000"}, "there is no such thread"),
        (400, {"thread_id": "x"}, "thread_id is 'x': Input should be a valid UUID"),
        (400, {"thumbs": "sideways"}, "thumbs is 'sideways': Input should be 'up' or"),
        (400, {"stars": 5}, "stars is 5: Extra inputs are not permitted"),
        (400, {"answer": "x" * 5000}, "the right answer has 5000 characters"),
    ):
        shown: Any = body
        assert detail in give(status, **shown)["detail"]
    text = web.post("/hopgate/feedback", content=b"{}", headers={"Content-Type": "text/plain"})
    assert text.status_code == 415
    assert give(200)["feedback"] is None
    assert ((await client.threads.get_state(thread))["values"])["feedback"] == {}  # type: ignore[call-overload]
