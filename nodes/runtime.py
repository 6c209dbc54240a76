"""What a node works with: the request's settings, and the model, index and router they name."""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from zoneinfo import ZoneInfo

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from hopgate.classifiers.decision import DEFAULT_ALPHA, Routed, Router, routed
from hopgate.common.background import wait_for
from hopgate.common.threads import in_thread
from hopgate.models import chat
from hopgate.models.chat import ChatModel, Completion
from hopgate.nodes import named
from hopgate.nodes.context import FIXED, Context
from hopgate.nodes.events import Event, FailedEvent
from hopgate.nodes.identity import identity
from hopgate.nodes.limits import NO_LIMITS, Limits
from hopgate.nodes.named import RetrievalFailed
from hopgate.nodes.own_prompts import PromptName
from hopgate.nodes.spending import (
    KEY,
    Account,
    Accounts,
    BudgetSpent,
    Count,
    DeadlinePassed,
    Spending,
    estimated_tokens,
)
from hopgate.nodes.state import Coverage, Decision, Looked, Update, Usage
from hopgate.retrievers.base import Hit, Retriever
from hopgate.retrievers.coverage import Look
from hopgate.retrievers.filters import filtered

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.prompts import BasePromptTemplate

ANSWER_SHARE = 0.25
"""Share of the turn's time and tokens that the loop leaves for the answer."""
USUAL_ANSWER = 1_000
"""Tokens that an answer without a limit is counted with until the endpoint has counted them."""
WEB = "web:"
MAX_COUNT = 100_000_000
"""Tokens that one call can have; an endpoint that counts more, or below 0, is not believed."""
Value = TypeVar("Value")


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
        prompts: The app's own prompts, by name.
        accounts: What the graph's threads have spent.
    """

    model: ChatModel | None = None
    retriever: Retriever | None = None
    router: Router | None = None
    clock: Callable[[], datetime] = system_clock
    limits: Limits = NO_LIMITS
    context: Context | None = None
    instructions: str = ""
    prompts: Mapping[PromptName, "BasePromptTemplate[Any]"] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=Accounts, compare=False)

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
            await in_thread(f"check {self.store(context)}", lambda: [check() for check in checks])

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

    def store(self, context: Context) -> str:
        """Return the kind of store that the request searches: the app's own, folders, qdrant, …."""
        if self.retriever is not None:
            return f"own {id(self.retriever)}"
        kind, found, _ = context.index.partition(":")
        return kind if found else "folder"

    def model_name(self, context: Context) -> str:
        """Return the full name of the request's model."""
        return self.model.name if self.model else chat.resolve(context.model)


@dataclass
class NodeRuntime:
    """One visit to a node: its settings, its resources, and what the run has cost.

    Attributes:
        context: The request's settings, within the operator's limits.
        resources: What the app handed in.
        send: Writes an event into the run's `custom` stream.
        misplaced: Names of settings in the config's `configurable`, where they have no effect.
        spending: What the run has cost so far; its nodes share it.
        leaves_room: Whether the node leaves time, tokens and a call for the answer.
        last_call: The newest call to the model, if there was one.
    """

    context: Context
    resources: Resources = field(default_factory=Resources)
    send: Callable[[Event], None] = lambda event: None
    misplaced: tuple[str, ...] = ()
    spending: Spending = field(default_factory=Spending)
    leaves_room: bool = False
    last_call: Completion | None = None
    _model: ChatModel | None = None

    @property
    def usage(self) -> Usage:
        """What the run has cost so far."""
        return self.spending.usage

    async def model(self) -> ChatModel:
        """Return the request's chat model."""
        if self._model is None:
            self._model = await self.resources.load_model(self.context)
        return self._model

    async def alpha(self) -> float:
        """Return the request's α, by default the profile's own."""
        context, own = self.context, self.resources.router is not None
        if context.alpha is not None or own or context.strategy != "auto":
            return DEFAULT_ALPHA if context.alpha is None else context.alpha
        name = self.resources.model_name(context)
        return await in_thread("alpha", named.default_alpha, context, name)

    async def route(self, question: str) -> Routed:
        """Ask the request's router."""
        own, alpha = self.resources.router, await self.alpha()
        if own is not None:
            (found,) = await in_thread(f"route {id(own)}", routed, own, [question], alpha)
            return found
        name = self.resources.model_name(self.context)
        return await named.route(self.context, name, question, alpha)

    async def complete(
        self, messages: Sequence["BaseMessage"], *, max_tokens: int | None, **options: Any
    ) -> Completion:
        """Ask the model and count the calls; see `hopgate.models.chat.complete`.

        A model that spends the whole reply on thoughts is asked again, with room for them.

        Raises:
            BudgetSpent: The turn may not make another call, or not one of this size.
        """
        try:
            return await self._complete(messages, max_tokens, options)
        except chat.OnlyThoughts:
            return await self._complete(messages, max_tokens, options)

    async def _complete(
        self, messages: Sequence["BaseMessage"], max_tokens: int | None, options: dict[str, Any]
    ) -> Completion:
        model = await self.model()
        prompt = estimated_tokens(each.text for each in messages)
        reply = USUAL_ANSWER if max_tokens is None else model.room(max_tokens)
        self.check_budget(calls=1, tokens=prompt + reply)
        estimate = {"llm_calls": 1, "prompt_tokens": prompt, "completion_tokens": reply}
        self.spending.add(**estimate)  # at once, for the calls beside this one
        spent = estimate.copy()  # a call that fails midway may have been billed in full
        try:
            completion = await chat.complete(model, messages, max_tokens=max_tokens, **options)
            completion = _plausible(completion)
            spent["prompt_tokens"] = completion.prompt_tokens or prompt
            written = completion.completion_tokens or estimated_tokens([completion.text])
            spent["completion_tokens"] = written
        except ValueError:  # nothing was sent
            spent = dict.fromkeys(estimate, 0)
            raise
        except chat.ModelError as error:
            if getattr(error.__cause__, "status_code", None):  # the endpoint refused the request
                spent["completion_tokens"] = 0
            raise
        finally:
            self.spending.add(**{name: spent[name] - estimate[name] for name in estimate})
        self.last_call = completion
        return completion

    async def answer_tokens(self, messages: Sequence["BaseMessage"]) -> int | None:
        """Return how long an answer to this prompt may be: by the request, and by its budget.

        Returns:
            Tokens, without thoughts; None: as long as the model makes it.
        """
        limit, budget = self.context.max_answer_tokens, self.context.max_total_tokens
        if budget is None:
            return limit
        of_thread = "max_total_tokens" in self.resources.limits.context
        used = self.spending.used("prompt_tokens", "completion_tokens", of_thread=of_thread)
        prompt = estimated_tokens(each.text for each in messages)
        thoughts = (await self.model()).room(0)
        left = max(1, budget - used - prompt - thoughts)
        return left if limit is None else min(limit, left)

    async def look(self, query: str) -> Looked | None:
        """Search before deciding, unless that costs more than it may save, as on the web.

        The retrieval is counted when its passages are used, see `search`.

        Returns:
            None if nothing was searched: on the web, or with an app's retriever that has no `look`.
        """
        context, own = self.context, self.resources.retriever
        is_mute = own is not None and not hasattr(own, "look")
        if is_mute or (own is None and context.index.startswith(WEB)):
            return None
        k = max(context.top_k, context.hop_k)
        try:
            if own is None and named.is_folder(context):
                found = await named.look(context, query, k)
            else:
                found = await in_thread(self.resources.store(context), self._look, query, k)
        except RetrievalFailed:
            return None  # said where the passages are needed
        coverage, share = None, found.share
        if found.score is not None and share is not None:
            coverage = Coverage(score=found.score, share=share)
        settings = self._searched()
        return Looked(query=query, settings=settings, passages=found.hits, coverage=coverage)

    def _look(self, query: str, k: int) -> Look:
        retriever = self.resources.open_retriever(self.context)
        return named.look_with(retriever, [query], k)[0]

    def _searched(self) -> str:
        """Return the settings that say where a search looks."""
        names = ("index", "mode", "rerank", "where")
        return repr([getattr(self.context, name) for name in names])

    async def search(self, query: str, k: int, looked: Looked | None = None) -> list[Hit]:
        """Find the `k` best passages and count the retrieval.

        Args:
            query: The search text.
            k: Maximum number of passages.
            looked: An earlier look, whose passages are used if it was for the same search.

        Returns:
            Hits of plain Python types, whatever the retriever returns (numpy scalars cannot be
            checkpointed).

        Raises:
            RetrievalFailed: The retriever raised; the message names the cause.
            BudgetSpent: The turn may not search again.
        """
        self.check_budget(retrievals=1)
        self.spending.add(retrieval_steps=1)
        if looked and (looked["query"], looked["settings"]) == (query, self._searched()):
            return looked["passages"][:k]
        if self.resources.retriever is None and named.is_folder(self.context):
            return await named.search(self.context, query, k)
        return await in_thread(self.resources.store(self.context), self._search, query, k)

    def _search(self, query: str, k: int) -> list[Hit]:
        (hits,) = named.find(self.resources.open_retriever(self.context), [query], k)
        return hits

    def check_budget(self, *, calls: int = 0, retrievals: int = 0, tokens: int = 0) -> None:
        """Check that the turn may still spend this much.

        A maximum that the operator sets counts for all runs and forks of the turn in this process.

        Raises:
            BudgetSpent: It may not; names what was used and the setting.
        """
        room, all_tokens = self.leaves_room, self.context.max_total_tokens or 0
        self._check("max_calls", calls, 1 * room, "llm_calls")
        self._check("max_retrievals", retrievals, 0, "retrieval_steps")
        answer = int(all_tokens * ANSWER_SHARE * room)
        self._check("max_total_tokens", tokens, answer, "prompt_tokens", "completion_tokens")

    def _check(self, setting: str, more: int, kept: int, *counts: Count) -> None:
        maximum: int | None = getattr(self.context, setting)
        if not more or maximum is None:
            return
        used = self.spending.used(*counts, of_thread=setting in self.resources.limits.context)
        if used + more + kept > maximum:
            for_answer = f" and keeps {kept} for the answer" if kept else ""
            raise BudgetSpent(
                f"the turn has used {used} of {maximum} ({setting}){for_answer}, and needs {more} "
                f"more; raise {setting}, or ask a new question"
            )

    def affords_another(self) -> bool:
        """Return whether time and budget are left for a deeper strategy and its answer."""
        deeper = replace(self, leaves_room=True)
        try:
            deeper.check_budget(calls=1, retrievals=1, tokens=1)
        except BudgetSpent:
            return False
        return deeper.seconds_left() > 0

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

    def seconds_left(self) -> float:
        """Return the time until the turn's deadline; 0 if it has passed, inf if there is none."""
        if self.context.max_seconds is None:
            return math.inf
        whole = self.context.max_seconds * (1 - ANSWER_SHARE * self.leaves_room)
        return max(0.0, whole - self.spending.seconds(self.now()))

    async def in_time(self, name: str, work: Coroutine[Any, Any, Value]) -> Value:
        """Wait for work until the turn's deadline.

        Args:
            name: What it is, for the message.
            work: What to wait for.

        Raises:
            DeadlinePassed: It did not end in time, and was cancelled.
        """
        left = self.seconds_left()
        if not left:
            work.close()
            raise self._late(name)
        limit = asyncio.timeout(None if left == math.inf else left)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if limit.expired():
                raise self._late(name) from error
            raise

    def _late(self, name: str) -> DeadlinePassed:
        return DeadlinePassed(
            f"{name} did not end within the turn's {self.context.max_seconds or 0:g} s "
            "(max_seconds); raise max_seconds, or use a faster model or index"
        )


Node = Callable[[Any, NodeRuntime], Coroutine[Any, Any, Update]]


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
    node: Node,
    resources: Resources,
    name: str | None = None,
    *,
    first: bool = False,
    in_loop: bool = False,
) -> BoundNode:
    """Return a node with its resources, which adds the visit's cost to `usage`.

    Args:
        node: A function of state and `NodeRuntime` that returns the channels it changes.
        resources: What the app handed in.
        name: The node's name in the graph and in `usage["ms"]`; None is the function's.
        first: Whether the node starts a turn, so that the state is still the last turn's.
        in_loop: Whether it is the loop's, which has a state of its own.

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
        if not first and "standalone" not in state:
            raise ValueError(
                f"there is no turn that {name} could continue; ask with `question` or a message"
            )
        if limited:
            context = limits.apply(context, _user(runtime))
            if not first:
                limits.check_state(state)
        visited = NodeRuntime(context, resources, runtime.stream_writer)
        visited.misplaced = _misplaced(runtime.context, config) if first else ()
        visited.spending = spending = _entered(visited, state, config, first=first)
        try:
            update = await visited.in_time(name, node(state, visited))
        except BaseException as error:
            error.usage = usage = spending.fail_visit(state)  # type: ignore[attr-defined]
            if isinstance(error, Exception) and usage["llm_calls"] + usage["retrieval_steps"]:
                visited.send(FailedEvent(event="failed", node=name, usage=usage))
            raise
        ms = (time.perf_counter() - started) * 1000
        usage = spending.end_visit(name, ms, in_loop=in_loop)
        if first:  # not before: a start that fails opens no turn
            run = _of_run(config)
            resources.accounts.open(_thread(config, run), spending.account)
            run.begin_turn(spending)
        return {**update, "usage": Overwrite(usage) if first else usage}

    visit.__name__ = name
    return visit


def _plausible(completion: Completion) -> Completion:
    """Return a reply whose counts are 0 where those of the endpoint cannot be true."""

    def counted(tokens: object) -> int:
        return tokens if type(tokens) is int and 0 <= tokens <= MAX_COUNT else 0

    return replace(
        completion,
        prompt_tokens=counted(completion.prompt_tokens),
        completion_tokens=counted(completion.completion_tokens),
    )


def _entered(
    visited: NodeRuntime, state: Any, config: RunnableConfig | None, *, first: bool
) -> Spending:
    """Return the run's spending, which its first node opens; for `start` one of its own."""
    spending, now = Spending() if first else _of_run(config), visited.now()
    if first:
        spending.enter(Account(), {}, now)
    elif spending.began is None:
        account = visited.resources.accounts.of(_thread(config, spending), state)
        spending.enter(account, state, now)
    return spending


def _of_run(config: RunnableConfig | None) -> Spending:
    given = _configurable(config).get(KEY)
    return given if isinstance(given, Spending) else Spending()


def _configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    return (config or {}).get("configurable", {})


def _thread(config: RunnableConfig | None, run: Spending) -> str | None:
    thread: str | None = _configurable(config).get("thread_id")
    return thread if thread is None else f"{thread} {run.place}"


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
    names = Context.__dataclass_fields__.keys() & _configurable(config).keys()
    return tuple(sorted(names - (given.given if isinstance(given, Context) else frozenset())))


def with_warning(state: Any, *warnings: str) -> Decision:
    """Return a change of the decision that adds warnings to those of the turn."""
    return Decision(warnings=[*state["decision"].get("warnings", []), *warnings])
