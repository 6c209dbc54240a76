"""The graph's state: plain JSON types, so that every checkpoint can be read and edited.

The reducers are also where hand edits are checked: LangGraph runs them on `update_state` too.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Annotated, Any, Literal, NotRequired, cast, get_args

from langchain_core.messages import AnyMessage
from langgraph.channels import EphemeralValue
from langgraph.graph import add_messages
from langgraph.types import Overwrite
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hopgate.common.strategies import STRATEGIES, Label, Strategy
from hopgate.nodes.context import LoopMode
from hopgate.nodes.internals import delta_channel
from hopgate.retrievers.base import Hit

Verdict = Literal["yes", "no", "invalid", "skipped"]
StopReason = Literal[
    "answered",
    "hop_limit",
    "repeated_query",
    "no_new_passage",
    "evidence_budget",
    "deadline",
    "no_thought",
    "retriever_failed",
]

Update = dict[str, Any]
"""What a node returns: the channels that it changes."""


class GateDecision(TypedDict):
    """What the gate decided, and why."""

    mode: str
    answer: Verdict
    retrieve: bool
    p_yes: float | None
    uncertainty: float | None
    threshold: float | None
    reply: str
    reason: str


class RouteDecision(TypedDict):
    """What the router decided, and why. `probs` is empty if a person chose the strategy."""

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


class Hop(TypedDict):
    """One retrieval: its query, the passages found, and the thought that followed."""

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


class DirectAnswer(TypedDict):
    """The answer that the `draft` gate wrote, and the question it answers."""

    question: str
    text: str


Escalation = TypedDict("Escalation", {"from": Strategy, "to": Strategy, "reason": str})
"""A step to the next deeper strategy, because the answer was in doubt."""


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
    gate: GateDecision
    route: RouteDecision | None
    strategy: Strategy
    stop_reason: StopReason | None
    """Why the loop ended."""
    answered: bool
    """False if the answer is "I don't know"."""
    doubt: str | None
    """Why the answer may not be good enough; None if there is no sign of it."""
    escalate_to: Strategy | None
    """The strategy to try next because of `doubt`; None if the answer stands."""
    escalated: list[Escalation]
    warnings: list[str]


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "strategy": STRATEGIES,
    "multihop": get_args(LoopMode),
    "escalate_to": (None, *STRATEGIES[1:]),
}


def merge_decision(old: Decision, new: Decision) -> Decision:
    """Reducer: new keys replace old ones, also inside `gate` and `route`.

    So a person can edit `{"gate": {"retrieve": True}}` alone.

    Raises:
        ValueError: `strategy`, `multihop` or `escalate_to` has an unknown value.
    """
    merged: dict[str, Any] = dict(old)
    for key, value in new.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[key] = {**before, **value} if both else value  # type: ignore[dict-item]
    for key, choices in _CHOICES.items():
        if key in merged and merged[key] not in choices:
            *others, last = map(str, choices)
            raise ValueError(
                f"decision.{key} is {merged[key]!r}; use {', '.join(others)} or {last}"
            )
    return cast(Decision, merged)


def add_evidence(old: list[Hit], new: list[Hit]) -> list[Hit]:
    """Reducer: keep each passage once, by id; new passages go first.

    A passage with a known id replaces the old one in place, so its text can be edited.
    `Overwrite([…])` replaces the whole list.

    Raises:
        ValueError: An item is not a complete passage.
    """
    _check_items("evidence", new, ("id", "title", "text", "score"))
    given = {hit["id"]: hit for hit in new}
    known = {hit["id"] for hit in old}
    added = [hit for hit in given.values() if hit["id"] not in known]
    return [*added, *(given.get(hit["id"], hit) for hit in old)]


def add_hops(old: list[Hop], new: list[Hop]) -> list[Hop]:
    """Reducer: keep each hop once, by query, oldest first.

    A hop with a known query replaces the old one in place. `Overwrite([…])` replaces the whole
    list.

    Raises:
        ValueError: An item is not a complete hop.
    """
    _check_items("hops", new, ("query", "passage_ids", "thought"))
    given = {hop["query"]: hop for hop in new}
    known = {hop["query"] for hop in old}
    added = [hop for hop in given.values() if hop["query"] not in known]
    return [*(given.get(hop["query"], hop) for hop in old), *added]


def _check_items(name: str, items: Sequence[Any], keys: Sequence[str]) -> None:
    for item in items:
        missing = [repr(key) for key in keys if not isinstance(item, dict) or key not in item]
        if missing:
            raise ValueError(f"{name} has {item!r:.200}, which lacks {', '.join(missing)}; add it")


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
    usage: Usage
    messages: Annotated[list[AnyMessage], add_messages]


class Found(TypedDict):
    """What a graph without an answer returns: its decisions, and the passages that it found."""

    standalone: str
    decision: Annotated[Decision, merge_decision]
    evidence: Annotated[list[Hit], add_evidence]
    hops: Annotated[list[Hop], add_hops]
    usage: Usage


class State(TypedDict, total=False):
    """Everything that is checkpointed."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The conversation, over all turns."""
    question: Annotated[str, EphemeralValue]
    """The turn's input; cleared after the first step, so no later turn can pick it up."""
    original_question: str
    """The question as the user wrote it."""
    standalone: str
    """The question as every later node reads it, understandable without the conversation."""
    message_id: str
    """The user message that this turn answers."""
    decision: Annotated[Decision, merge_decision]
    draft: DirectAnswer | None
    """The draft gate's answer; without evidence it becomes the turn's answer."""
    evidence: Annotated[list[Hit], add_evidence]
    """Passages found in this turn, in citation order."""
    sub_questions: list[str]
    """The decomposed question, `{1}` standing for the first answer; empty for `ircot`."""
    started_at: float | None
    """When the turn started, in seconds since 1970 by the app's clock; deadlines count from it.
    None: they count from the loop's first step."""
    hops: Annotated[list[Hop], add_hops]
    next_query: str
    """The loop's next query if a person set it; empty: the query that follows from the thoughts."""
    answer: str
    citations: list[Citation]
    usage: Usage


class MultihopState(TypedDict, total=False):
    """What the loop reads and writes; every key but `bytes_per_token` is the main graph's."""

    standalone: str
    decision: Annotated[Decision, merge_decision]
    evidence: Annotated[
        list[Hit], delta_channel(lambda old, writes: reduce(add_evidence, writes, old))
    ]
    sub_questions: list[str]
    started_at: float | None
    hops: Annotated[list[Hop], delta_channel(lambda old, writes: reduce(add_hops, writes, old))]
    next_query: str
    usage: Usage
    bytes_per_token: float
    """The model's token size in bytes, measured on its last call in the loop."""


NO_USAGE = Usage(retrieval_steps=0, llm_calls=0, prompt_tokens=0, completion_tokens=0, ms={})


def new_turn(alpha: float, multihop: LoopMode, warnings: list[str]) -> Update:
    """Return what `start` resets, since channels keep their values from turn to turn.

    Nothing in it is shared: a caller may change the lists it gets.
    """
    decision = Decision(
        route=None,
        stop_reason=None,
        escalate_to=None,
        escalated=[],
        warnings=warnings,
        alpha=alpha,
        multihop=multihop,
    )
    return {
        "decision": Overwrite(decision),
        "draft": None,
        "evidence": Overwrite([]),
        "sub_questions": [],
        "hops": Overwrite([]),
        "next_query": "",
        "answer": "",
        "citations": [],
        "usage": Usage(**{**NO_USAGE, "ms": {}}),
    }
