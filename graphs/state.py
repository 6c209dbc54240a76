"""The graph's state: plain JSON types, so that every checkpoint can be read and edited."""

import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Annotated, Any, TypeVar, cast

from langchain_core.messages import AnyMessage
from langgraph.channels import DeltaChannel, EphemeralValue
from langgraph.graph import add_messages
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from hopgate.models.chat import Completion
from hopgate.nodes.gate import GateDecision
from hopgate.nodes.generate import Citation
from hopgate.nodes.reason import StopReason
from hopgate.nodes.route import RouteDecision, Strategy
from hopgate.retrievers.base import Hit

Item = TypeVar("Item")


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


class Draft(TypedDict):
    """A direct answer that the `draft` gate wrote, and the question that it answers."""

    question: str
    text: str


Escalation = TypedDict("Escalation", {"from": Strategy, "to": Strategy, "reason": str})
"""A step to a deeper strategy, since the answer was not good enough."""


class Decision(TypedDict, total=False):
    """Why this path: every decision of the turn.

    The edges follow `gate.retrieve` after the gate and `strategy` after the router: editing
    them redirects the run.
    """

    alpha: float
    """The request's, when the turn began."""
    model: str
    gate: GateDecision
    route: RouteDecision | None
    strategy: Strategy
    stop_reason: StopReason | None
    answered: bool
    doubt: str | None
    """Why the answer may not be good enough; None if nothing speaks against it."""
    escalated: list[Escalation]
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


def add_evidence(old: list[Hit], new: list[Hit]) -> list[Hit]:
    """Reducer: each passage once, by id; new ones go before those that are there.

    A passage that is there already is replaced where it stands, so that its text can be
    edited, and so that the loop may hand over what the main graph gave it.
    `Overwrite([…])` replaces them all.

    Raises:
        ValueError: A person has written something that is no passage.
    """
    _check("evidence", new, ("id", "title", "text", "score"))
    given = {hit["id"]: hit for hit in new}
    known = {hit["id"] for hit in old}
    added = [hit for hit in given.values() if hit["id"] not in known]
    return [*added, *(given.get(hit["id"], hit) for hit in old)]


def add_hops(old: list[Hop], new: list[Hop]) -> list[Hop]:
    """Reducer: each hop once, by its query, in order; one that is there is replaced.

    `Overwrite([…])` replaces them all.

    Raises:
        ValueError: A person has written something that is no hop.
    """
    _check("hops", new, ("query", "passage_ids", "thought"))
    given = {hop["query"]: hop for hop in new}
    known = {hop["query"] for hop in old}
    added = [hop for hop in given.values() if hop["query"] not in known]
    return [*(given.get(hop["query"], hop) for hop in old), *added]


def _check(name: str, items: Sequence[Any], keys: Sequence[str]) -> None:
    for item in items:
        missing = [repr(key) for key in keys if not isinstance(item, dict) or key not in item]
        if missing:
            raise ValueError(f"{name} has {item!r:.200}, which lacks {', '.join(missing)}; add it")


def by_writes(
    reducer: Callable[[list[Item], list[Item]], list[Item]],
) -> DeltaChannel[list[Item]]:
    """Make a channel that checkpoints each write instead of the whole list at each step.

    So what a loop adds to a database grows with its hops, not with their square.
    """
    return DeltaChannel(lambda old, writes: reduce(reducer, writes, old), list)


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
    hops: Annotated[list[Hop], add_hops]
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
    draft: Draft | None
    """What the draft gate answered; without evidence it becomes the answer."""
    evidence: Annotated[list[Hit], add_evidence]
    """Passages found in this turn, each once, in the order of their numbers."""
    plan: list[str]
    """Sub-questions, `{1}` for the first answer; empty where the loop does not decompose."""
    began: float | None
    """When the turn began: seconds since 1970, by the app's clock. None: when its loop does."""
    hops: Annotated[list[Hop], add_hops]
    next_query: str
    """What the loop searches for next, if a person has set it; empty: what its thoughts say."""
    answer: str
    citations: list[Citation]
    usage: Usage


class MultihopState(TypedDict, total=False):
    """What the loop reads and writes; every key but `bytes_per_token` is the main graph's."""

    standalone: str
    decision: Annotated[Decision, merge]
    evidence: Annotated[list[Hit], by_writes(add_evidence)]
    plan: list[str]
    began: float | None
    hops: Annotated[list[Hop], by_writes(add_hops)]
    next_query: str
    usage: Usage
    bytes_per_token: float
    """How the model counts, as its last call in the loop showed."""


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
