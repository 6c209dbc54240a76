"""What a node works with: the request's settings, and the model, index and router they name."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime, get_runtime

from hopgate.classifiers.decision import Routed, Router, routed
from hopgate.common.background import wait_for
from hopgate.models import chat
from hopgate.models.chat import ChatModel, Completion
from hopgate.nodes import named
from hopgate.nodes.context import FIXED, Context
from hopgate.nodes.events import Event
from hopgate.nodes.evidence import plain_hit
from hopgate.nodes.identity import identity
from hopgate.nodes.limits import NO_LIMITS, Limits
from hopgate.nodes.state import NO_USAGE, Decision, Update, Usage
from hopgate.retrievers.base import Hit, Retriever
from hopgate.retrievers.filters import filtered

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

log = logging.getLogger(__name__)

RETRIEVER_FAILED = "the retriever failed"  # starts the warning about it


class RetrievalFailed(RuntimeError):
    """The retriever raised while searching; the answer has to do without it."""


def system_clock() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Resources:
    """What an app handed to `build_graph`; whatever is None is loaded by its name in the context.

    Loading happens off the event loop, once per process and setting.

    Attributes:
        model: The app's chat model.
        retriever: The app's retriever.
        router: The app's router.
        clock: Returns the current time as an aware datetime.
        limits: The operator's limits.
        context: The settings of a request that gives none.
        instructions: What every answer follows.
    """

    model: ChatModel | None = None
    retriever: Retriever | None = None
    router: Router | None = None
    clock: Callable[[], datetime] = system_clock
    limits: Limits = NO_LIMITS
    context: Context | None = None
    instructions: str = ""

    async def check(self, context: Context) -> None:
        """Check everything the request will need, before paying for any call.

        Raises:
            ValueError: The model's name, the index, the filter, the router or the pool of
                demonstrations cannot be used.
        """
        model = self.model_name(context)
        checks: list[Callable[[], object]] = []
        if self.retriever is not None:
            filtered(self.retriever, context.where)
        else:
            checks.append(lambda: named.check_index(context))
        if self.router is None and context.strategy == "auto":
            checks.append(lambda: named.check_router(context, model))
        if context.demos != FIXED:
            from hopgate.nodes.demonstrations import load_pool

            checks.append(lambda: load_pool(Path(context.demos)))
        if checks:
            await asyncio.to_thread(lambda: [check() for check in checks])

    async def load_model(self, context: Context) -> ChatModel:
        """Return the request's chat model, with the layout and evidence size the request sets."""
        model = self.model or await chat.load(context.model)
        if self.limits.prompt_chars is not None:
            model = replace(model, prompt_chars=self.limits.prompt_chars)
        if context.layout != "auto":
            model = replace(model, layout=context.layout)
        if context.max_evidence_tokens is not None:
            chars = context.max_evidence_tokens * chat.CHARS_PER_TOKEN
            model = replace(model, evidence_chars=chars)
        return model

    def open_retriever(self, context: Context) -> Retriever:
        """Return the request's retriever, all searches of which fulfil its filter; may block.

        Raises:
            ValueError: The retriever cannot be searched with a filter.
        """
        if self.retriever is not None:
            return filtered(self.retriever, context.where)
        return named.open_index(context)

    def model_name(self, context: Context) -> str:
        """Return the full name of the request's model."""
        return self.model.name if self.model else chat.resolve(context.model)


def find(retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Hit]]:
    """Search an open retriever; may block.

    Returns:
        For each query at most `k` hits, of plain Python types.

    Raises:
        RetrievalFailed: The retriever raised, or returned the hits of fewer or more queries.
    """
    try:
        found = retriever.search(queries, k)
        pairs = zip(queries, found, strict=True)
        return [[plain_hit(hit) for hit in hits[:k]] for _, hits in pairs]
    except Exception as error:
        sizes = ", ".join(str(len(query)) for query in queries)
        log.warning("retrieval failed for a query of %s characters", sizes, exc_info=error)
        cause = " ".join(str(error).split())[:200] or type(error).__name__
        raise RetrievalFailed(f"{RETRIEVER_FAILED}: {cause}") from error


@dataclass
class NodeRuntime:
    """One visit to a node: its settings, its resources, and what the visit costs.

    Attributes:
        context: The request's settings, within the operator's limits.
        resources: What the app handed in.
        send: Writes an event into the run's `custom` stream.
        misplaced: Names of settings in the config's `configurable`, where they have no effect.
        usage: What this visit has cost so far.
        last_call: The newest call to the model, if there was one.
    """

    context: Context
    resources: Resources = field(default_factory=Resources)
    send: Callable[[Event], None] = lambda event: None
    misplaced: tuple[str, ...] = ()
    usage: Usage = field(default_factory=NO_USAGE.copy)
    last_call: Completion | None = None
    _model: ChatModel | None = None

    async def model(self) -> ChatModel:
        """Return the request's chat model."""
        if self._model is None:
            self._model = await self.resources.load_model(self.context)
        return self._model

    async def route(self, question: str) -> Routed:
        """Ask the request's router."""
        own, alpha = self.resources.router, self.context.alpha
        if own is not None:
            (found,) = await asyncio.to_thread(routed, own, [question], alpha)
            return found
        return await named.route(self.context, self.resources.model_name(self.context), question)

    async def complete(self, messages: Sequence["BaseMessage"], **options: Any) -> Completion:
        """Ask the model once and count the call; see `hopgate.models.chat.complete`."""
        completion = await chat.complete(await self.model(), messages, **options)
        self.usage["llm_calls"] += 1
        self.usage["prompt_tokens"] += completion.prompt_tokens
        self.usage["completion_tokens"] += completion.completion_tokens
        self.last_call = completion
        return completion

    async def search(self, query: str, k: int) -> list[Hit]:
        """Find the `k` best passages and count the retrieval.

        Returns:
            Hits of plain Python types, whatever the retriever returns (numpy scalars cannot be
            checkpointed).

        Raises:
            RetrievalFailed: The retriever raised; the message names the cause.
        """
        self.usage["retrieval_steps"] += 1
        if self.resources.retriever is None and named.is_folder(self.context):
            return await named.search(self.context, query, k, find)
        return await asyncio.to_thread(self._search, query, k)

    def _search(self, query: str, k: int) -> list[Hit]:
        (hits,) = find(self.resources.open_retriever(self.context), [query], k)
        return hits

    def total(self, state: Mapping[str, Any]) -> Usage:
        """Return what the turn has cost, up to now in this visit."""
        return add_usage(state.get("usage") or NO_USAGE, self.usage, {})

    def now(self) -> float:
        """Return the current time by the app's clock, in seconds since 1970."""
        return self.resources.clock().timestamp()

    def today(self) -> date:
        """Return the request's date, or the clock's in the request's time zone."""
        if self.context.today:
            return self.context.today
        now = self.resources.clock()
        if now.tzinfo is None:
            raise ValueError(f"the clock returned {now} without a time zone; use an aware datetime")
        zone = ZoneInfo(self.context.timezone) if self.context.timezone else None
        return now.astimezone(zone).date()  # None: the system's time zone

    def is_late(self, started_at: float | None) -> bool:
        """Return whether the deadline has passed; False while `started_at` is None."""
        if self.context.max_seconds is None or started_at is None:
            return False
        # abs: a start edited into the future postpones the deadline only once.
        return abs(self.now() - started_at) >= self.context.max_seconds


Node = Callable[[Any, NodeRuntime], Awaitable[Update]]


class BoundNode(Protocol):
    """A node with its resources."""

    def __call__(
        self, state: Any, *, runtime: Runtime[Context], config: RunnableConfig | None = None
    ) -> Coroutine[Any, Any, Update]:
        """Visit the node."""
        ...


class Step(Runnable[Any, Update]):
    """A bound node as LangGraph calls it: awaited by `ainvoke`, in the background by `invoke`."""

    def __init__(self, visit: BoundNode) -> None:
        """Wrap a bound node."""
        self._visit = visit

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:
        """Visit the node and wait for it."""
        return wait_for(self._visit(input, runtime=get_runtime(Context), config=config))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:
        """Visit the node."""
        return await self._visit(input, runtime=get_runtime(Context), config=config)


def bind(
    node: Node, resources: Resources, name: str | None = None, *, first: bool = False
) -> BoundNode:
    """Return a node with its resources, which adds the visit's cost to `usage`.

    Args:
        node: A function of state and `NodeRuntime` that returns the channels it changes.
        resources: What the app handed in.
        name: The node's name in the graph and in `usage["ms"]`; None is the function's.
        first: Whether the node starts a turn, so that the state is still the last turn's.

    Raises:
        ValueError: From the returned function: a setting, or a part of the state that a person
            edited, exceeds the operator's limits, or these name the authenticated user and there
            is none.
    """
    name, limits = name or node.__name__, resources.limits
    limited = limits is not NO_LIMITS

    async def visit(
        state: Any, *, runtime: Runtime[Context], config: RunnableConfig | None = None
    ) -> Update:
        started = time.perf_counter()
        context = settings(runtime.context, resources.context)
        if limited:
            context = limits.apply(context, _user(runtime))
            if not first:
                limits.check_state(state)
        visited = NodeRuntime(context, resources, runtime.stream_writer)
        visited.misplaced = _misplaced(runtime.context, config) if first else ()
        update = await node(state, visited)
        before = update.get("usage") or state.get("usage") or NO_USAGE
        ms = (time.perf_counter() - started) * 1000
        return {**update, "usage": add_usage(before, visited.usage, {name: ms})}

    visit.__name__ = name
    return visit


def _user(runtime: Runtime[Context]) -> str | None:
    """Return the authenticated user's name.

    LangGraph takes it from the object that the server puts into the run's config, never from
    JSON that a request brings.
    """
    info = runtime.server_info
    return identity(info.user) if info else None


def settings(given: object, defaults: Context | None) -> Context:
    """Return the settings of a request.

    LangGraph passes a parent graph's context on to the graphs inside it. One that is no `Context`
    has settings of another graph, so it is ignored.

    Args:
        given: The run's context.
        defaults: The graph's own, for what the request leaves out.
    """
    if not isinstance(given, Context):
        return defaults or Context()
    return given.over(defaults) if defaults else given


def _misplaced(given: object, config: RunnableConfig | None) -> tuple[str, ...]:
    """Return the settings that are only in `configurable`; a server copies it to the context."""
    names = Context.__dataclass_fields__.keys() & (config or {}).get("configurable", {}).keys()
    return tuple(sorted(names - (given.given if isinstance(given, Context) else frozenset())))


def add_usage(before: Usage, more: Usage, ms: dict[str, float]) -> Usage:
    """Return the sum of two usages, with the milliseconds of a node's visit."""
    times = {**before["ms"]}
    for node, each in ms.items():
        times[node] = round(times.get(node, 0.0) + each, 1)
    return Usage(
        retrieval_steps=before["retrieval_steps"] + more["retrieval_steps"],
        llm_calls=before["llm_calls"] + more["llm_calls"],
        prompt_tokens=before["prompt_tokens"] + more["prompt_tokens"],
        completion_tokens=before["completion_tokens"] + more["completion_tokens"],
        ms=times,
    )


def with_warning(state: Any, *warnings: str) -> Decision:
    """Return a change of the decision that adds warnings to those of the turn."""
    return Decision(warnings=[*state["decision"].get("warnings", []), *warnings])
