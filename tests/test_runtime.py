"""What nodes share: their runtime, the edges' limits, the state's reducers, strategy names."""

import logging
import math
from typing import Any

import numpy as np
import pytest
from doubles import FERRY, LIGHT, BreakingRetriever, Clock, FixedRetriever, TalkingModel
from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime

from hopgate import Context
from hopgate.models.chat import ModelError, wrap
from hopgate.nodes.run.binding import BoundNode
from hopgate.nodes.run.resources import RetrievalFailed
from hopgate.nodes.run.runtime import NodeRuntime, Resources
from hopgate.nodes.run.state import NO_USAGE, Update, add_hops, merge_decision

USAGE: Any = {
    "retrieval_steps": 2,
    "llm_calls": 3,
    "prompt_tokens": 40,
    "completion_tokens": 5,
    "ms": {"gate": 1.5},
}


def resources(*, tokens_per_byte: float | None = None, **given: Any) -> Resources:
    model = TalkingModel(say=lambda *_: "Yes", tokens_per_byte=tokens_per_byte)
    return Resources(model=wrap(model), **{"retriever": FixedRetriever([LIGHT]), **given})


# Binding a node


async def call_and_search(state: Any, runtime: NodeRuntime) -> Update:
    await runtime.complete([HumanMessage("12345678")], max_tokens=1)
    await runtime.search("query", 1)
    return {"answer": "x"}


async def visit(bound: Any, state: dict[str, Any], context: Any = None) -> dict[str, Any]:
    events: list[Any] = []
    runtime = Runtime(context=context, stream_writer=events.append)
    update: dict[str, Any] = await bound.visit({"standalone": "", **state}, runtime)
    return update


async def test_bind_adds_the_cost_of_a_visit_to_the_usage_so_far() -> None:
    bound = BoundNode(call_and_search, resources(tokens_per_byte=0.5))
    update = await visit(bound, {"usage": USAGE})
    assert update["answer"] == "x"
    usage = update["usage"]
    assert (usage["retrieval_steps"], usage["llm_calls"]) == (3, 4)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (44, 6)
    assert usage["ms"].keys() == {"gate", "call_and_search"}
    assert usage["ms"]["gate"] == 1.5
    assert USAGE["llm_calls"] == 3
    assert NO_USAGE["ms"] == {}


# Searching and calling the model


async def test_a_search_counts_as_a_retrieval_even_if_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = NodeRuntime(Context(), resources(retriever=BreakingRetriever([])))
    with caplog.at_level(logging.WARNING), pytest.raises(RetrievalFailed, match="store is down"):
        await runtime.search("a secret query", 3)
    assert runtime.usage["retrieval_steps"] == 1
    assert "secret" not in caplog.messages[0]


async def test_a_search_returns_at_most_k_hits_of_plain_types() -> None:
    found: Any = {
        **{key: np.str_(FERRY[key]) for key in ("id", "title", "text")},  # type: ignore[literal-required]
        "score": np.float32(0.5),
        "source": np.str_("ferries.pdf"),
        "page": np.int64(3),
        "section": "",
        "extra": object(),
    }
    hits = await NodeRuntime(
        Context(), resources(retriever=FixedRetriever([found, LIGHT, LIGHT]))
    ).search("ferry", 2)
    assert hits == [{**FERRY, "source": "ferries.pdf", "page": 3}, LIGHT]
    assert {key: type(value) for key, value in hits[0].items()} == {
        "id": str,
        "title": str,
        "text": str,
        "score": float,
        "source": str,
        "page": int,
    }


async def test_a_failed_call_counts_with_an_estimate_of_its_prompt() -> None:
    """Unless there was no connection, and so nothing to pay for."""
    for fault, tokens in ((TimeoutError("slow"), (2, 1)), (ConnectionError("down"), (0, 0))):

        def fail(*_: Any, fault: Exception = fault) -> str:
            raise fault

        runtime = NodeRuntime(Context(), Resources(model=wrap(TalkingModel(say=fail))))
        with pytest.raises(ModelError, match=str(fault)):
            await runtime.complete([HumanMessage("Hello")], max_tokens=1)
        spent = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
        assert runtime.usage == {**NO_USAGE, "llm_calls": 1, **spent}


async def test_the_context_sets_the_models_layout_and_evidence_size() -> None:
    runtime = NodeRuntime(Context(layout="turns", max_evidence_tokens=500), resources())
    model = await runtime.model()
    assert (model.layout, model.evidence_chars) == ("turns", 2_000)


# Time


@pytest.mark.parametrize(
    ("max_seconds", "elapsed", "left", "left_in_the_loop"),
    [(None, 1e9, math.inf, math.inf), (10, 7, 3, 0.5), (10, 8, 2, 0), (10, 11, 0, 0)],
)
def test_the_loop_leaves_a_quarter_of_the_time_for_the_answer(
    max_seconds: float | None, elapsed: float, left: float, left_in_the_loop: float
) -> None:
    clock = Clock()
    runtime = NodeRuntime(Context(max_seconds=max_seconds), Resources(clock=clock))
    clock.advance(elapsed)
    assert runtime.seconds_left() == pytest.approx(left, abs=0.1)
    runtime.leaves_room = True
    assert runtime.seconds_left() == pytest.approx(left_in_the_loop, abs=0.1)


# Reducers


def test_decisions_merge_by_key_also_inside_gate_and_route() -> None:
    old: Any = {"alpha": 0.4, "gate": {"retrieve": False, "reply": "[No]"}, "route": None}
    new: Any = {"strategy": "single", "gate": {"retrieve": True}, "route": {"label": "B"}}
    assert merge_decision(old, new) == {
        "alpha": 0.4,
        "gate": {"retrieve": True, "reply": "[No]"},
        "route": {"label": "B"},
        "strategy": "single",
    }
    assert old["gate"]["retrieve"] is False
    assert "strategy" not in old


def test_a_hop_with_a_known_query_replaces_the_old_one_in_place() -> None:
    first: Any = {"query": "a", "passage_ids": [], "thought": ""}
    second: Any = {"query": "b", "passage_ids": [], "thought": ""}
    changed: Any = {**first, "thought": "A fact."}
    assert add_hops([first], [second, changed]) == [changed, second]
