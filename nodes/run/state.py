"""The graph's state: plain JSON types, so that every checkpoint can be read and edited.

Hand edits are checked before they reach the reducers: `hopgate.nodes.run.edits`.
"""

from typing import Annotated, Any, Literal, NotRequired, cast

from langchain_core.messages import AnyMessage
from langgraph.channels import EphemeralValue
from langgraph.graph import add_messages
from pydantic import with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hopgate.common.strategies import Label, Strategy
from hopgate.nodes.run.context import LoopMode
from hopgate.nodes.run.feedback import Given, merge_feedback
from hopgate.nodes.run.internals import delta_channel
from hopgate.nodes.texts.message import MessageDecision
from hopgate.retrievers.base import Hit

GateAnswer = Literal["yes", "no", "invalid", "skipped"]
StopReason = Literal[
    "answered",
    "hop_limit",
    "repeated_query",
    "no_new_passage",
    "evidence_budget",
    "deadline",
    "budget",
    "no_thought",
    "retriever_failed",
]

Update = dict[str, Any]
"""A node's result: the channels that it changes."""


class Coverage(TypedDict):
    """How well the collection covers the question, see `retrievers.coverage`."""

    score: float
    """The highest inner product with a passage."""
    share: float
    """The share of unrelated questions that score lower in this collection, from 0 to 1."""


@with_config(extra="forbid")
class GateDecision(TypedDict):
    """The gate's decision, and why."""

    mode: str
    answer: GateAnswer
    retrieve: bool
    p_yes: float | None
    uncertainty: float | None
    threshold: float | None
    reply: str
    reason: str
    coverage: NotRequired[Coverage | None]
    """How well the collection covers the question, if that was measured."""


class Looked(TypedDict):
    """A search made before the decision; a search for the same query then uses its passages."""

    query: str
    settings: str
    passages: list[Hit]
    coverage: Coverage | None
    """None if the collection was not measured, or its scores say nothing."""


@with_config(extra="forbid")
class RouteDecision(TypedDict):
    """The router's decision, and why. `probs` is empty if a person chose the strategy."""

    label: Label
    probs: dict[str, float]
    alpha: float
    source: str
    profile: str
    reason: str


class Citation(TypedDict):
    """A passage that the answer rests on, with the sentence that supports it."""

    id: str
    title: str
    quote: str
    number: NotRequired[int]
    """The number that cites it in the answer, 1 for `[1]`; missing if the answer has no marks."""
    source: NotRequired[str]
    """File or address of the passage."""
    page: NotRequired[int]
    section: NotRequired[str]
    """Heading above the passage."""
    metadata: NotRequired[dict[str, Any]]
    """See `Passage`."""


class Hop(TypedDict):
    """One retrieval: its query, the passages found, and the thought that followed."""

    query: str
    passage_ids: list[str]
    thought: str


class Usage(TypedDict):
    """The cost of a turn. `ms` is milliseconds per node.

    Calls and searches count when they start, so those that fail count too. Tokens are those that
    the endpoint counts; where it counts none, or a call fails, they are estimated.
    """

    retrieval_steps: int
    llm_calls: int
    prompt_tokens: int
    completion_tokens: int
    ms: dict[str, float]


NO_USAGE = Usage(retrieval_steps=0, llm_calls=0, prompt_tokens=0, completion_tokens=0, ms={})


def merge_usage(old: Usage, new: Usage) -> Usage:
    """Reducer: a cost never shrinks, so each count is the larger one.

    Nodes write the cost of the whole turn, and those that run side by side write in any order.
    """
    before, after = cast(dict[str, Any], old or NO_USAGE), cast(dict[str, Any], new)
    largest = {key: max(before.get(key, 0), after.get(key, 0)) for key in NO_USAGE if key != "ms"}
    times = {**before.get("ms", {})}
    for node, ms in after.get("ms", {}).items():
        times[node] = max(ms, times.get(node, 0.0))
    return cast(Usage, {**largest, "ms": times})


class DirectAnswer(TypedDict):
    """The answer that the gate `draft` or `reply` wrote, and the question it answers."""

    question: str
    text: str
    full: NotRequired[bool]
    """Whether it is a full answer, of the gate `reply`, to the message in its conversation."""
    id: NotRequired[str | None]
    cut: NotRequired[bool]
    warnings: NotRequired[list[str]]


Escalation = TypedDict("Escalation", {"from": Strategy, "to": Strategy, "reason": str})
"""A step to the next deeper strategy, because the answer was in doubt."""


@with_config(extra="forbid")
class Decision(TypedDict, total=False):
    """Every decision of the turn, with its reason.

    The edges read `gate.retrieve`, `strategy`, `multihop` and `escalate_to`: editing one of them
    redirects the run. Before `route`, set `strategy` to `single` or `multi` only; `gate.retrieve`
    has no effect on a gate that was skipped.
    """

    alpha: float
    """The request's α when the turn started."""
    multihop: LoopMode
    """How the loop works, if the turn gets there; `route` takes it from the request."""
    model: str
    message: MessageDecision
    """The kind of the message; anything but a question needs no search."""
    gate: GateDecision
    route: RouteDecision | None
    strategy: Strategy
    stop_reason: StopReason | None
    """Why the loop ended."""
    cut: bool
    """Whether the answer ended at its maximum length."""
    answered: bool
    """False if the answer is "I don't know"."""
    doubt: str | None
    """Why the answer may not be good enough; None if there is no sign of it."""
    escalate_to: Literal["single", "multi"] | None
    """The strategy to try next because of `doubt`; None if the answer stands."""
    escalated: list[Escalation]
    warnings: list[str]


def merge_decision(old: Decision, new: Decision) -> Decision:
    """Reducer: new keys replace old ones, also inside `gate` and `route`.

    So a person can edit `{"gate": {"retrieve": True}}` alone.
    """
    merged: dict[str, Any] = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
    return cast(Decision, merged)


def add_evidence(old: list[Hit], new: list[Hit]) -> list[Hit]:
    """Reducer: keep each passage once, by id; new passages go first.

    A passage with a known id replaces the old one in place, so its text can be edited.
    `Overwrite([…])` replaces the whole list.
    """
    known = {hit["id"] for hit in old}
    merged = {hit["id"]: hit for hit in [*old, *new]}
    return sorted(merged.values(), key=lambda hit: hit["id"] in known)  # stable: new ones first


def add_hops(old: list[Hop], new: list[Hop]) -> list[Hop]:
    """Reducer: keep each hop once, by query, oldest first.

    A hop with a known query replaces the old one in place. `Overwrite([…])` replaces the whole
    list.
    """
    return list({hop["query"]: hop for hop in [*old, *new]}.values())


class Input(TypedDict, total=False):
    """The input of a turn: `question`, or `messages` ending with the user's.

    If both are given, `question` is answered.
    """

    question: Annotated[str, EphemeralValue]
    messages: Annotated[list[AnyMessage], add_messages]


class Output(TypedDict):
    """The output of a turn."""

    answer: str
    citations: list[Citation]
    decision: Annotated[Decision, merge_decision]
    hops: Annotated[list[Hop], add_hops]
    usage: Annotated[Usage, merge_usage]
    messages: Annotated[list[AnyMessage], add_messages]


class Retrieved(TypedDict):
    """The result of a graph without an answer: its decisions and passages."""

    standalone: str
    decision: Annotated[Decision, merge_decision]
    evidence: Annotated[list[Hit], add_evidence]
    hops: Annotated[list[Hop], add_hops]
    usage: Annotated[Usage, merge_usage]


class State(TypedDict, total=False):
    """Everything that is checkpointed."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The conversation, over all turns."""
    question: Annotated[str, EphemeralValue]
    """The turn's input; cleared after the first step, so no later turn can pick it up."""
    original_question: str
    """The message as the user wrote it, which a full answer replies to."""
    standalone: str
    """The question that is decided on and searched for: short, and understandable without the
    conversation. A short answer replies to it."""
    message_id: str
    """The user message that this turn answers."""
    decision: Annotated[Decision, merge_decision]
    looked: Looked | None
    """The search made before the decision, until its passages are used."""
    draft: DirectAnswer | None
    """The gate's answer; without evidence it becomes the turn's answer."""
    evidence: Annotated[list[Hit], add_evidence]
    """Passages found in this turn, in citation order."""
    sub_questions: list[str]
    """The decomposed question, `{1}` standing for the first answer; empty for `ircot`."""
    hops: Annotated[list[Hop], add_hops]
    next_query: str
    """The loop's next query if a person set it; empty: the query that follows from the thoughts."""
    answer: str
    citations: list[Citation]
    usage: Annotated[Usage, merge_usage]
    feedback: Annotated[Given, merge_feedback]
    """Users' feedback on answers, over all turns, by the id of the answer's message."""


class MultihopState(TypedDict, total=False):
    """The loop's state, of keys of the main graph's."""

    standalone: str
    decision: Annotated[Decision, merge_decision]
    evidence: Annotated[list[Hit], delta_channel(add_evidence)]
    sub_questions: list[str]
    hops: Annotated[list[Hop], delta_channel(add_hops)]
    next_query: str
    looked: Looked | None
    usage: Annotated[Usage, merge_usage]


def with_warning(state: Any, *warnings: str) -> Decision:
    """Return a change of the decision that adds warnings to those of the turn."""
    return Decision(warnings=[*state["decision"].get("warnings", []), *warnings])
