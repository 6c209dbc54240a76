"""Edits of the state from outside: a wrong type is refused at the edit, by its name."""

from typing import Any

import pytest
from doubles import CORRANE, FixedRetriever, FixedRouter, TalkingModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Overwrite, StateUpdate

from hopgate import build_graph

THREAD: Any = {"configurable": {"thread_id": "1"}}
QUESTION = "Where was Ilsabet Corrane born?"

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"decision": ["single"]}, r"decision is \['single'\]: input should be a valid dictionary"),
    ({"decision": {"gate": {"retrieve": "yes"}}}, "decision.gate.retrieve is 'yes'"),
    ({"decision": {"strategy": "deep"}}, "decision.strategy is 'deep'"),
    ({"decision": {"multihop": None}}, "decision.multihop is None"),
    ({"decision": Overwrite({"gate": {"retrieve": True}})}, "decision.gate.mode is missing"),
    ({"hops": {"__overwrite__": "x"}}, "hops is 'x'"),
    ({"hops": [{"query": 5, "passage_ids": [], "thought": ""}]}, "hops.0.query is 5"),
    ({"evidence": [{"id": "1", "title": "a", "text": "b", "score": "high"}]}, "evidence.0.score"),
    ({"standalone": ["Who?"]}, "standalone is"),
    ({"draft": {"text": "x"}}, "draft.question is missing"),
    ({"decision": {"strategi": "single"}}, "decision.strategi is not a key of the state"),
    ({"decision": {"gate": {"retreive": True}}}, "decision.gate.retreive is not a key"),
    ({"usage": {}}, "usage.retrieval_steps is missing"),
    ({"branch:to:generate": None}, "is not a key of the state; leave it out"),
]
MERGED = ("decision", "hops", "evidence", "usage")


def graph() -> Any:
    return build_graph(
        InMemorySaver(),
        model=TalkingModel(say=lambda *_: "[Yes] She was born in Lissmere."),
        retriever=FixedRetriever([CORRANE]),
        router=FixedRouter("B"),
    )


@pytest.mark.parametrize(("edit", "message"), WRONG)
async def test_an_edit_of_a_wrong_type_is_refused_by_name_and_changes_nothing(
    edit: dict[str, Any], message: str
) -> None:
    app = graph()
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    before = await app.aget_state(THREAD)
    with pytest.raises(ValueError, match=message):
        await app.aupdate_state(THREAD, edit)
    with pytest.raises(ValueError, match=message):
        app.update_state(THREAD, edit)
    with pytest.raises(ValueError, match=message):
        await app.ainvoke(Command(update=edit), THREAD)
    assert (await app.aget_state(THREAD)).config == before.config
    assert (await app.ainvoke(None, THREAD))["answer"]


async def test_a_part_of_a_decision_can_be_edited_alone() -> None:
    app = graph()
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["gate"])
    await app.aupdate_state(THREAD, {"decision": {"gate": {"retrieve": False}}})
    result = await app.ainvoke(None, THREAD)
    assert result["decision"]["gate"]["answer"] == "yes"
    assert result["hops"] == []


@pytest.mark.parametrize("key", ["decision", "hops", "evidence", "usage", "standalone"])
async def test_a_thread_with_a_wrong_state_from_before_can_be_read_and_repaired(key: str) -> None:
    app = graph()
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    good = (await app.aget_state(THREAD)).values[key]
    merged = key in MERGED
    unchecked = [[StateUpdate({key: Overwrite(["junk"]) if merged else ["junk"]}, "start")]]
    await CompiledStateGraph.abulk_update_state(app, THREAD, unchecked)
    assert (await app.aget_state(THREAD)).values[key] == ["junk"]
    assert [step async for step in app.aget_state_history(THREAD)]
    await app.aupdate_state(THREAD, {key: Overwrite(good) if merged else good}, as_node="route")
    assert (await app.ainvoke(None, THREAD))["answer"]


async def test_a_node_without_a_turn_says_so() -> None:
    app = graph()
    await app.aupdate_state(THREAD, {"next_query": "Who?"}, as_node="condense")
    with pytest.raises(ValueError, match="no turn that gate could continue; ask with"):
        await app.ainvoke(None, THREAD)
