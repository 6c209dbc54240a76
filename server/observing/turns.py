"""Turns: the decisions and the cost of each run of the graph.

`callbacks.py` builds one `Turn` for every run; logs, metrics and spans observe them;
`hopgate.server.watch` puts all of them together.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from hopgate.nodes.run.state import NO_USAGE, Decision, Usage

TurnOutcome = Literal["answered", "unsearched", "unknown", "paused", "error", "cancelled"]
Kind = Literal["node", "model"]


@dataclass
class Step:
    """One visit to a node, or one call to a model.

    Attributes:
        id: LangChain's id of the visit or call.
        parent: Id of the enclosing node, if any.
        kind: Node or model.
        name: Name of the node or the model.
        started_at: Nanoseconds since 1970.
        ended_at: Nanoseconds since 1970; None if it did not end.
        error: Class of the error that ended it, if any.
        prompt_tokens: Prompt tokens of the call, if the endpoint counts them.
        completion_tokens: Completion tokens of the call, if the endpoint counts them.
    """

    id: UUID
    parent: UUID | None
    kind: Kind
    name: str
    started_at: int
    ended_at: int | None = None
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Turn:
    """One run of the graph, from its start to its end.

    A conversation turn that was paused and resumed, or that failed and was retried, is several
    runs; each counts only its own cost.

    Attributes:
        run_id: LangChain's id of the run, and the server's.
        thread_id: Id of the conversation, if there is one.
        started_at: Nanoseconds since 1970.
        ended_at: Nanoseconds since 1970.
        user: Name of the authenticated user, if there is one.
        outcome: `answered`, `unsearched` (answered although a search failed), `unknown` ("I don't
            know"), `paused` (before or after a node, as requested), `error` or `cancelled`.
        error: Class of the error, such as ModelError.
        cause: Whose fault the error is, see `hopgate.common.faults`.
        message: The error's text, unless it is the fault of the request.
        failed_in: Node that raised the error.
        decision: Every decision so far.
        usage: Cost of this run alone.
        steps: Node visits and model calls in the order in which they started.
        is_edit: Whether its name is that of LangGraph's edits of the state.
    """

    run_id: UUID
    thread_id: str | None
    started_at: int
    ended_at: int = 0
    user: str | None = None
    outcome: TurnOutcome = "paused"
    error: str | None = None
    cause: str | None = None
    message: str | None = None
    failed_in: str | None = None
    decision: Decision = field(default_factory=Decision)
    usage: Usage = field(default_factory=NO_USAGE.copy)
    steps: list[Step] = field(default_factory=list)
    is_edit: bool = False

    @property
    def ms(self) -> float:
        """The duration in milliseconds."""
        return round((self.ended_at - self.started_at) / 1e6, 1)

    @property
    def visited(self) -> list[str]:
        """The names of the nodes, in the order in which they started."""
        return [step.name for step in self.steps if step.kind == "node"]

    @property
    def alpha(self) -> float | None:
        """The router's α, else the request's; None before the first node has ended."""
        return self.part("route").get("alpha", self.decision.get("alpha"))

    def part(self, name: Literal["gate", "route"]) -> dict[str, Any]:
        """Return a part of the decision; empty if it is missing or not a dictionary."""
        part: Any = self.decision.get(name)
        return part if isinstance(part, dict) else {}


Observer = Callable[[Turn], None]
