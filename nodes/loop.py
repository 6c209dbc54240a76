"""The loop's control: the next query, and when to stop.

Every node of the loop that decides to stop writes `decision.stop_reason`, which the edges read.
"""

import re
from collections.abc import Sequence
from functools import wraps

from hopgate.common.words import sentences
from hopgate.nodes.run.binding import Node
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.events import StopEvent, ThoughtEvent
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.spending import BudgetSpent, DeadlinePassed
from hopgate.nodes.run.state import Decision, Hop, MultihopState, StopReason, Update, with_warning
from hopgate.nodes.texts.text import has_words, key_words

REFERENCE = re.compile(r"\{(\d{1,2})\}")
"""Where a sub-question refers to an earlier answer, by its number."""
_FINAL = re.compile(
    r"\banswer is\s*:|^((so|thus|therefore|hence),? )?the answer is\b(?! not\b)", re.IGNORECASE
)
# Sentences that conclude or calculate name nothing new to search for.
_NOT_FACTUAL = re.compile(
    r"^(thus|so|that is|therefore|hence)\b|\d\s*[-+*/−×]\s*\d[^=]*=", re.IGNORECASE
)


def next_query(state: MultihopState) -> str:
    """Return the next query, empty if there is no sub-question left."""
    if query := (state.get("next_query") or "").strip():
        return query
    thoughts = [hop["thought"] for hop in state["hops"]]
    if sub_questions := state.get("sub_questions"):
        return filled(sub_questions, thoughts) if len(thoughts) < len(sub_questions) else ""
    return next_fact(state["standalone"], thoughts)


def next_fact(question: str, thoughts: Sequence[str]) -> str:
    """Return the last sentence of the reasoning that states a fact, else the question."""
    for thought in reversed(thoughts):
        for sentence in reversed(sentences(thought)):
            if has_words(sentence) and not _NOT_FACTUAL.search(sentence):
                return sentence
    return question


def filled(sub_questions: Sequence[str], answers: Sequence[str]) -> str:
    """Return the next sub-question with the answers of earlier ones filled in.

    A reference inside an answer is never filled; a reference to a missing answer stays.

    Args:
        sub_questions: All of them.
        answers: One for each sub-question searched so far, empty if there was none.
    """

    def replace(reference: re.Match[str]) -> str:
        number = int(reference[1])
        return (answers[number - 1] if 1 <= number <= len(answers) else "") or reference[0]

    return REFERENCE.sub(replace, sub_questions[len(answers)])


def stop_before_search(state: MultihopState, context: Context) -> StopReason | None:
    """Return why there should be no further search, or None to search."""
    escalated = bool(state["decision"].get("escalated"))
    exhausted = escalated and state["usage"]["retrieval_steps"] >= context.escalate
    if exhausted or len(state["hops"]) >= context.max_hops:
        return "hop_limit"
    query = next_query(state)
    if not query:
        return stop_after_thought(state)
    queries = [hop["query"] for hop in state["hops"]]
    return "repeated_query" if is_repeated(query, queries) else None


def is_repeated(query: str, earlier: Sequence[str]) -> bool:
    """Return whether a query was searched before, ignoring case, punctuation and word order."""
    words = key_words(query)
    return any(words == key_words(each) for each in earlier)


def stop_after_thought(state: MultihopState) -> StopReason | None:
    """Return why the loop should stop after its newest thought, or None to continue."""
    sub_questions, hops = state.get("sub_questions"), state["hops"]
    thought = hops[-1]["thought"] if hops else ""
    if not sub_questions:
        if not thought:
            return "no_thought"
        return "answered" if is_final(thought) else None
    is_last = len(hops) >= len(sub_questions)
    if not thought and (is_last or is_needed(sub_questions, len(hops))):
        return "no_thought"
    return "answered" if is_last else None


def is_final(thought: str) -> bool:
    """Return whether a thought states the answer ("… answer is: …")."""
    return _FINAL.search(thought) is not None


def is_needed(sub_questions: Sequence[str], number: int) -> bool:
    """Return whether a later sub-question refers to the answer of sub-question `number`."""
    return any(f"{{{number}}}" in later for later in sub_questions[number:])


def stop(state: MultihopState, runtime: NodeRuntime, reason: StopReason, *warnings: str) -> Update:
    """Return the update that stops the loop without another hop."""
    send_stop(runtime, len(state["hops"]), reason)
    decision = Decision(stop_reason=reason)
    if warnings:
        decision |= with_warning(state, *warnings)
    return {"decision": decision, **clear_query(state)}


def leaving_room(node: Node) -> Node:
    """Return a node of the loop that stops the loop in time for the answer.

    It stops at the loop's share of the deadline, also in the middle of a call, and before a call or
    a search that would leave too little of the budget.
    """

    @wraps(node)
    async def visit(state: MultihopState, runtime: NodeRuntime) -> Update:
        runtime.leaves_room = True
        try:
            return await runtime.in_time("the loop", node(state, runtime))
        except DeadlinePassed:
            shown = f"the loop stopped to answer within {runtime.context.max_seconds:g} s"
            return stop(state, runtime, "deadline", f"{shown} (max_seconds)")
        except BudgetSpent as error:
            return stop(state, runtime, "budget", f"the loop stopped: {error}")

    return visit


def send_stop(runtime: NodeRuntime, number: int, reason: StopReason | None) -> None:
    """Send the event of a loop that stops."""
    if reason:
        runtime.send(StopEvent(event="stop", number=number, stop_reason=reason))


def set_stop_reason(state: MultihopState, decision: Decision) -> Update:
    """Return the update of the decision, empty if nothing changes: every write is stored."""
    unchanged = decision == {"stop_reason": state["decision"].get("stop_reason")}
    return {} if unchanged else {"decision": decision}


def clear_query(state: MultihopState) -> Update:
    """Return the update that drops the query a person set, once it is used."""
    return {"next_query": ""} if state.get("next_query") else {}


def add_thought(state: MultihopState, runtime: NodeRuntime, thought: str) -> Update:
    """Return the update that adds a thought to the newest hop and says whether to stop."""
    *earlier, last = state["hops"]
    hops = [*earlier, Hop(**{**last, "thought": thought})]
    after = MultihopState(**{**state, "hops": hops})
    reason = stop_after_thought(after) or stop_before_search(after, runtime.context)
    runtime.send(ThoughtEvent(event="thought", number=len(hops), thought=thought))
    send_stop(runtime, len(hops), reason)
    return {"hops": hops[-1:], **set_stop_reason(state, Decision(stop_reason=reason))}
