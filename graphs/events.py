"""Events: what a run tells while it goes on, one TypedDict each, told apart by `event`.

The nodes send them as LangGraph's custom events, those of the loop out of the subgraph
(`subgraphs=True`). The answer's tokens come with its `messages` stream instead; `read` makes
events of both.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessageChunk
from langgraph.runtime import Runtime
from pydantic import Field
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from hopgate.graphs.context import Context
from hopgate.nodes.gate import GateDecision
from hopgate.nodes.generate import Citation
from hopgate.nodes.reason import StopReason
from hopgate.nodes.route import RouteDecision, Strategy
from hopgate.retrievers.base import Hit

ANSWERING = "generate"
"""The node that writes the answer; a retriever may ask models of its own."""


class GateEvent(GateDecision):
    """The gate has decided."""

    event: Literal["gate"]


class RouteEvent(RouteDecision):
    """The router has decided, or a person before it (`probs` is empty)."""

    event: Literal["route"]
    strategy: Strategy


class PlanEvent(TypedDict):
    """The question was split; `{1}` in a sub-question stands for the first answer."""

    event: Literal["plan"]
    sub_questions: list[str]


class Found(TypedDict):
    """A passage that a search found, without its text."""

    id: str
    title: str
    score: float


class HopEvent(TypedDict):
    """A search was made, the `number`-th of `hops`, from 1; `passages` are best first."""

    event: Literal["hop"]
    number: int
    query: str
    passages: list[Found]


class ThoughtEvent(TypedDict):
    """The sentence, or the sub-answer, that the model wrote after hop `number`."""

    event: Literal["thought"]
    number: int
    thought: str


class StopEvent(TypedDict):
    """The loop has ended after `number` hops."""

    event: Literal["stop"]
    number: int
    stop_reason: StopReason


EscalateEvent = TypedDict(
    "EscalateEvent",
    {"event": Literal["escalate"], "from": Strategy, "to": Strategy, "reason": str},
)
"""The answer was not good enough: tokens and answer sent before count no more."""


class TokenEvent(TypedDict):
    """A piece of the answer as the model writes it, markers such as `[1]` included.

    There is none where the model does not stream, or the draft gate's draft is the answer.
    """

    event: Literal["token"]
    text: str


class AnswerEvent(TypedDict):
    """The answer as it was read: without markers, or "I don't know"; and what it rests on."""

    event: Literal["answer"]
    text: str
    citations: list[Citation]


Event = Annotated[
    GateEvent
    | RouteEvent
    | PlanEvent
    | HopEvent
    | ThoughtEvent
    | StopEvent
    | EscalateEvent
    | TokenEvent
    | AnswerEvent,
    Field(discriminator="event"),
]


def send(runtime: Runtime[Context], event: Event) -> None:
    """Write an event into the run's `custom` stream."""
    runtime.stream_writer(event)


def hop(number: int, query: str, hits: Sequence[Hit]) -> HopEvent:
    """Build the event of the `number`-th search and what it found."""
    passages = [Found(id=hit["id"], title=hit["title"], score=hit["score"]) for hit in hits]
    return HopEvent(event="hop", number=number, query=query, passages=passages)


def read(mode: str, part: Any) -> Event | None:
    """Return the event in a part of the Python stream, if it holds one.

    Args:
        mode: `custom` or `messages`; a part of another mode holds none.
        part: What the stream gave in that mode.
    """
    if mode == "custom":
        event: Event = part
        return event
    if mode != "messages":
        return None
    message, metadata = part
    if metadata.get("langgraph_node") != ANSWERING or not isinstance(message, AIMessageChunk):
        return None
    if not message.text:
        return None
    # A lone surrogate could be neither printed nor sent.
    return TokenEvent(event="token", text=message.text.encode("utf-8", "replace").decode())
