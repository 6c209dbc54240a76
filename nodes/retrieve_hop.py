"""Retrieve in the loop: search with the next query and add new passages to the evidence."""

import math

from hopgate.nodes.loop import (
    clear_query,
    leaving_room,
    next_query,
    send_stop,
    set_stop_reason,
    stop,
    stop_before_search,
)
from hopgate.nodes.prompts import evidence
from hopgate.nodes.prompts.templates import shorten
from hopgate.nodes.run.events import hop_event
from hopgate.nodes.run.resources import RetrievalFailed
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import Decision, Hop, MultihopState, StopReason, Update, with_warning
from hopgate.retrievers.base import Hit


@leaving_room
async def retrieve_hop(state: MultihopState, runtime: NodeRuntime) -> Update:
    """Search with the next query and keep the new passages that fit the evidence budget."""
    if reason := stop_before_search(state, runtime.context):  # only after a hand edit
        return stop(state, runtime, reason)
    query, number = next_query(state), len(state["hops"]) + 1
    found: list[Hit] = []
    new: list[Hit] = []
    try:
        found = await runtime.search(query, runtime.context.hop_k, state.get("looked"))
        new, stop_reason = await _select(found, state, runtime)
        decision = Decision(stop_reason=stop_reason)
    except RetrievalFailed as error:
        if runtime.context.retriever_failure == "error":
            raise
        decision = Decision(stop_reason="retriever_failed")
        decision |= with_warning(state, f"hop {number}: {error}")
    hop = Hop(query=query, passage_ids=[hit["id"] for hit in found], thought="")
    runtime.send(hop_event(number, query, found))
    send_stop(runtime, number, decision["stop_reason"])
    return {
        "evidence": new,
        "hops": [hop],
        **set_stop_reason(state, decision),
        **clear_query(state),
        **({"looked": None} if state.get("looked") else {}),
    }


async def _select(
    found: list[Hit], state: MultihopState, runtime: NodeRuntime
) -> tuple[list[Hit], StopReason | None]:
    """Return the passages that join the evidence, and why the loop stops if none does.

    A sub-question may also be answered over passages that were there before.
    """
    chars = runtime.context.passage_chars
    known = [shorten(hit, chars) for hit in state["evidence"]]
    unseen = evidence.unseen(known, [shorten(hit, chars) for hit in found])
    max_bytes = await _max_bytes(runtime)
    new = evidence.fit_budget(unseen, known, runtime.context.max_passages, max_bytes)
    found_again = {hit["id"] for hit in known} & {hit["id"] for hit in found}
    if new or (state.get("sub_questions") and found_again):
        return new, None
    return new, "evidence_budget" if unseen else "no_new_passage"


async def _max_bytes(runtime: NodeRuntime) -> float:
    """Return the evidence budget in bytes, of which English prose has about one a character.

    A tiny model reads the newest passages and ignores the rest, so it has no such limit.
    """
    model = await runtime.model()
    unlimited = model.tiny and runtime.context.max_evidence_tokens is None
    return math.inf if unlimited else model.evidence_chars
