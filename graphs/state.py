"""The graph's state: plain JSON types, so that every checkpoint can be read and edited."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, cast

from langchain_core.messages import AnyMessage
from langgraph.channels import EphemeralValue
from langgraph.graph import add_messages
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from hopgate.models.chat import Completion
from hopgate.nodes.gate import GateDecision
from hopgate.nodes.generate import Citation
from hopgate.nodes.route import RouteDecision, Strategy
from hopgate.retrievers.base import Hit


class Hop(TypedDict):
    """One retrieval: what was asked, what came back, what was thought of it."""

    query: str
    passage_ids: list[str]
    thought: str


class Usage(TypedDict):
    """What a turn cost. `ms` is milliseconds per node."""

    retrieval_steps: int
    llm_calls: int
    prompt_tokens: int
    completion_tokens: int
    ms: dict[str, float]


class Decision(TypedDict, total=False):
    """Why this path: every decision of the turn.

    The edges follow `gate.retrieve` after the gate and `strategy` after the router: editing
    them redirects the run.
    """

    model: str
    gate: GateDecision
    route: RouteDecision | None
    strategy: Strategy
    stop_reason: str | None
    answered: bool
    warnings: list[str]


def merge(old: Decision, new: Decision) -> Decision:
    """Reducer: later keys win, others stay, also inside `gate` and `route`.

    So a person can edit `{"gate": {"retrieve": True}}` alone.
    """
    merged: dict[str, Any] = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
    return cast(Decision, merged)


class Input(TypedDict, total=False):
    """What a turn starts from: `question`, or `messages` that end with the user's.

    Where both are given, `question` is answered.
    """

    question: Annotated[str, EphemeralValue]
    messages: Annotated[list[AnyMessage], add_messages]


class Output(TypedDict):
    """What a turn ends with."""

    answer: str
    citations: list[Citation]
    decision: Annotated[Decision, merge]
    hops: list[Hop]
    usage: Usage
    messages: Annotated[list[AnyMessage], add_messages]


class State(TypedDict, total=False):
    """Everything that is checkpointed."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The conversation, over all turns."""
    question: Annotated[str, EphemeralValue]
    """The turn's input; gone after the first step, so that a later turn cannot take it up."""
    asked: str
    """The question as asked."""
    standalone: str
    """The question as every later node reads it."""
    message_id: str
    """The user message that this turn answers."""
    decision: Annotated[Decision, merge]
    evidence: list[Hit]
    """Passages found in this turn, each once, in the order of their numbers."""
    hops: list[Hop]
    answer: str
    citations: list[Citation]
    usage: Usage


class MultihopState(TypedDict, total=False):
    """What the loop reads and writes; every key is the main graph's."""

    standalone: str
    decision: Annotated[Decision, merge]
    evidence: list[Hit]
    hops: list[Hop]
    usage: Usage


def new_usage() -> Usage:
    """Return the usage of a turn that has cost nothing yet."""
    return Usage(retrieval_steps=0, llm_calls=0, prompt_tokens=0, completion_tokens=0, ms={})


def spend(
    usage: Usage,
    node: str,
    started: float,
    completions: Sequence[Completion] = (),
    steps: int = 0,
) -> Usage:
    """Return `usage` with one more visit to `node`.

    Args:
        usage: What the turn has cost so far; left as it is.
        node: The node's name, the key in `ms`.
        started: `time.perf_counter()` at the start of the visit.
        completions: The visit's calls to the model.
        steps: The visit's retrievals.
    """
    ms = (time.perf_counter() - started) * 1000
    return Usage(
        retrieval_steps=usage["retrieval_steps"] + steps,
        llm_calls=usage["llm_calls"] + len(completions),
        prompt_tokens=usage["prompt_tokens"] + sum(c.prompt_tokens for c in completions),
        completion_tokens=usage["completion_tokens"]
        + sum(c.completion_tokens for c in completions),
        ms={**usage["ms"], node: round(usage["ms"].get(node, 0.0) + ms, 1)},
    )
