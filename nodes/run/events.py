"""Events of a running graph, one TypedDict each, distinguished by `event`.

Nodes send them as LangGraph's custom events, the loop's from inside the subgraph
(`subgraphs=True`). The answer's tokens arrive in the `messages` stream; `read` turns both into
events.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessageChunk
from pydantic import Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hopgate.common.strategies import Strategy
from hopgate.nodes.run.state import Citation, GateDecision, RouteDecision, StopReason, Usage
from hopgate.retrievers.base import Hit

ANSWERING_NODES = ("generate", "gate")  # the gate `reply` may write the answer


class GateEvent(GateDecision):
    """The gate has decided."""

    event: Literal["gate"]


class RouteEvent(RouteDecision):
    """The router has decided, or a person before it (then `probs` is empty)."""

    event: Literal["route"]
    strategy: Strategy


class PlanEvent(TypedDict):
    """The question was split; `{1}` in a sub-question stands for the first answer."""

    event: Literal["plan"]
    sub_questions: list[str]


class FoundPassage(TypedDict):
    """A passage that a search found, without its text."""

    id: str
    title: str
    score: float


class HopEvent(TypedDict):
    """Search `number` of the turn (from 1) has returned; `passages` are best first."""

    event: Literal["hop"]
    number: int
    query: str
    passages: list[FoundPassage]


class ThoughtEvent(TypedDict):
    """The model has written the thought, or the sub-answer, of hop `number`."""

    event: Literal["thought"]
    number: int
    thought: str


class StopEvent(TypedDict):
    """The loop has stopped after hop `number`."""

    event: Literal["stop"]
    number: int
    stop_reason: StopReason


EscalateEvent = TypedDict(
    "EscalateEvent", {"event": Literal["escalate"], "from": Strategy, "to": Strategy, "reason": str}
)
"""The answer was in doubt: discard the tokens and the answer sent before."""


class AnsweringEvent(TypedDict):
    """The answer begins: over how many passages, and whether in full (`answers`).

    `thoughts`: the model's thoughts come first, without a tag that starts them. `may_search`: the
    reply may be the wish to search instead; then the answer begins again later.
    """

    event: Literal["answering"]
    passages: int
    full: bool
    thoughts: bool
    may_search: bool


class TokenEvent(TypedDict):
    """A piece of the answer as the model writes it, marks such as `[1]` included.

    There are none if the model does not stream, or if the draft gate's draft is the answer.
    """

    event: Literal["token"]
    text: str


class AnswerEvent(TypedDict):
    """The final answer, or "I don't know", and its citations; marks of no passage are gone."""

    event: Literal["answer"]
    text: str
    citations: list[Citation]


class FailedEvent(TypedDict):
    """A node has failed, and the run ends with its error; `usage` is the turn's cost."""

    event: Literal["failed"]
    node: str
    usage: Usage


Event = Annotated[
    GateEvent
    | RouteEvent
    | PlanEvent
    | HopEvent
    | ThoughtEvent
    | StopEvent
    | EscalateEvent
    | AnsweringEvent
    | TokenEvent
    | AnswerEvent
    | FailedEvent,
    Field(discriminator="event"),
]


def hop_event(number: int, query: str, hits: Sequence[Hit]) -> HopEvent:
    """Return the event of a search and the passages it found."""
    passages = [FoundPassage(id=hit["id"], title=hit["title"], score=hit["score"]) for hit in hits]
    return HopEvent(event="hop", number=number, query=query, passages=passages)


def read(mode: str, part: Any) -> Event | None:
    """Return the event in a part of the Python stream, or None if it holds none.

    Args:
        mode: The stream mode of the part; only `custom` and `messages` hold events.
        part: A part of the stream in that mode.
    """
    if mode == "custom":
        event: Event = part
        return event
    if mode != "messages":
        return None
    message, metadata = part
    answers = metadata.get("langgraph_node") in ANSWERING_NODES
    if not (answers and isinstance(message, AIMessageChunk) and message.text):
        return None
    # A lone surrogate can be neither printed nor sent.
    return TokenEvent(event="token", text=message.text.encode("utf-8", "replace").decode())
