"""The runtime of a node: the request's settings, and the model, index and router they name."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

from hopgate.classifiers.decision import DEFAULT_ALPHA, RouterLike, RouterReply, routed
from hopgate.common.faults import blamed
from hopgate.common.threads import in_thread
from hopgate.models import chat
from hopgate.models.chat import ChatModel, Completion
from hopgate.nodes.prompts.own import PromptName
from hopgate.nodes.run import resources as named
from hopgate.nodes.run import stopping
from hopgate.nodes.run.context import FIXED, Context
from hopgate.nodes.run.events import Event
from hopgate.nodes.run.limits import NO_LIMITS, Limits
from hopgate.nodes.run.resources import RetrievalFailed
from hopgate.nodes.run.spending import (
    BudgetSpent,
    Count,
    DeadlinePassed,
    add_usage,
    estimated_tokens,
)
from hopgate.nodes.run.state import NO_USAGE, Coverage, Looked, Usage
from hopgate.nodes.texts.text import first_line
from hopgate.retrievers.base import Hit, Retriever
from hopgate.retrievers.coverage import Look
from hopgate.retrievers.filters import filtered

if TYPE_CHECKING:
    from langchain_core.documents import BaseDocumentCompressor
    from langchain_core.messages import BaseMessage
    from langchain_core.prompts import BasePromptTemplate

    from hopgate.retrievers.rerank import Reranker

ANSWER_SHARE = 0.25
"""Share of the turn's time and tokens that the loop leaves for the answer."""
USUAL_ANSWER = 1_000
"""Tokens that an answer without a limit is counted with until the endpoint has counted them."""
COUNTED: dict[str, tuple[Count, ...]] = {
    "max_calls": ("llm_calls",),
    "max_retrievals": ("retrieval_steps",),
    "max_total_tokens": ("prompt_tokens", "completion_tokens"),
}
"""The counts that a setting bounds."""
WEB = "web:"
Value = TypeVar("Value")


def system_clock() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Resources:
    """The parts an app passed to `build_graph`; those that are None are loaded as the context says.

    Loading happens off the event loop, once per process and setting.

    Attributes:
        model: The app's chat model.
        retriever: The app's retriever.
        reranker: Reorders what is found; the app's.
        router: The app's router.
        clock: Returns the current time as an aware datetime.
        limits: The operator's limits.
        context: The settings of requests that give none.
        instructions: Instructions for every answer.
        prompts: The app's own prompts, by name.
        page: What a server's page shows, see `hopgate.graphs.compiled.Page`.
    """

    model: ChatModel | None = None
    retriever: Retriever | None = None
    reranker: "Reranker | BaseDocumentCompressor | None" = None
    router: RouterLike | None = None
    clock: Callable[[], datetime] = system_clock
    limits: Limits = NO_LIMITS
    context: Context | None = None
    instructions: str = ""
    prompts: Mapping[PromptName, "BasePromptTemplate[Any]"] = field(default_factory=dict)
    page: Mapping[str, Any] | None = None

    async def check(self, context: Context) -> None:
        """Check everything the request will need, before paying for any call.

        Raises:
            ValueError: The model's name, the index, the filter, the router or the pool of
                demonstrations cannot be used.
        """
        model = self.model_name(context)

        def check() -> None:
            if self.retriever is not None:
                filtered(self.retriever, context.where)
            else:
                named.check_index(context)
            if self.router is None and context.strategy == "auto":
                named.check_router(context, model)
            if context.demos != FIXED:
                from hopgate.nodes.prompts.demonstrations import load_pool

                load_pool(Path(context.demos))

        await in_thread(f"check {self.store(context)}", check)

    async def load_model(self, context: Context) -> ChatModel:
        """Return the request's chat model, with the layout and evidence size the request sets."""
        if (model := self.model) is None:
            name = chat.resolve(context.model)
            with blamed("model"):
                model = await chat.load(name)
        if context.layout != "auto":
            model = replace(model, layout=context.layout)
        if context.max_evidence_tokens is not None:
            chars = context.max_evidence_tokens * chat.CHARS_PER_TOKEN
            model = replace(model, evidence_chars=chars)
        return model

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
    """One visit to a node: its settings, its resources, and the run's cost.

    Attributes:
        context: The request's settings, within the operator's limits.
        resources: The parts that the app passed in.
        send: Writes an event into the run's `custom` stream.
        before: The turn's cost before this visit.
        usage: The cost of this visit.
        began: When it began, in seconds since 1970 by the app's clock.
        leaves_room: Whether the node leaves time, tokens and a call for the answer.
        notes: Warnings for the turn, which the node adds when it ends.
    """

    context: Context
    resources: Resources = field(default_factory=Resources)
    send: Callable[[Event], None] = lambda event: None
    before: Usage = field(default_factory=NO_USAGE.copy)
    usage: Usage = field(default_factory=lambda: deepcopy(NO_USAGE))
    began: float = 0
    leaves_room: bool = False
    notes: list[str] = field(default_factory=list)
    _model: ChatModel | None = None

    def __post_init__(self) -> None:
        """Note the time."""
        self.began = self.began or self.now()

    def total(self) -> Usage:
        """Return the turn's cost so far."""
        return add_usage(self.before, self.usage)

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

    async def route(self, question: str) -> RouterReply:
        """Ask the request's router."""
        own, alpha = self.resources.router, await self.alpha()
        if own is not None:
            with blamed("router"):
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

    async def complete_line(self, messages: Sequence["BaseMessage"], *, max_tokens: int) -> str:
        """Ask the model for one line; see `complete`."""
        stop = ["\n"] if (await self.model()).layout == "turns" else ()
        return first_line((await self.complete(messages, max_tokens=max_tokens, stop=stop)).text)

    async def _complete(
        self, messages: Sequence["BaseMessage"], max_tokens: int | None, options: dict[str, Any]
    ) -> Completion:
        model = await self.model()
        prompt = estimated_tokens(each.text for each in messages)
        reply = USUAL_ANSWER if max_tokens is None else model.room(max_tokens)
        self.check_budget(calls=1, tokens=prompt + reply)
        self.usage["llm_calls"] += 1
        try:
            completion = await chat.complete(model, messages, max_tokens=max_tokens, **options)
            prompt = completion.prompt_tokens or prompt
            reply = completion.completion_tokens or estimated_tokens([completion.text])
        except chat.ModelError as error:
            if error.fault == "model_connection":
                prompt = reply = 0
            elif getattr(error.__cause__, "status_code", None):  # the endpoint refused the request
                reply = 0
            raise
        finally:  # a call that fails midway may have been billed in full
            self.usage["prompt_tokens"] += prompt
            self.usage["completion_tokens"] += reply
        return completion

    async def answer_tokens(self, messages: Sequence["BaseMessage"]) -> int | None:
        """Return how long an answer to this prompt may be: by the request, and by its budget.

        Returns:
            Tokens, without thoughts; None: as long as the model makes it.
        """
        limit, budget = self.context.max_answer_tokens, self.context.max_total_tokens
        if budget is None:
            return limit
        prompt = estimated_tokens(each.text for each in messages)
        thoughts = (await self.model()).room(0)
        left = max(1, budget - self._used("max_total_tokens") - prompt - thoughts)
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
            found = await self._found(query, k, measured=True)
        except RetrievalFailed:
            return None  # said where the passages are needed
        if found.warning:
            return None
        coverage = None
        if found.score is not None and found.share is not None:
            coverage = Coverage(score=found.score, share=found.share)
        settings = self._searched()
        return Looked(query=query, settings=settings, passages=found.hits, coverage=coverage)

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
        self.usage["retrieval_steps"] += 1
        if looked and (looked["query"], looked["settings"]) == (query, self._searched()):
            return looked["passages"][:k]
        found = await self._found(query, k)
        self.notes += [found.warning] if found.warning else []
        return found.hits

    async def _found(self, query: str, k: int, *, measured: bool = False) -> Look:
        context, resources = self.context, self.resources
        reranker = resources.reranker
        if resources.retriever is None and reranker is None and named.is_folder(context):
            return await named.search(context, query, k, measured=measured)

        def open_in(mode: Any) -> Retriever:
            return named.open_index(context.model_copy(update={"mode": mode}))

        def search() -> list[Look]:
            own = resources.retriever
            if reranker is not None:
                from hopgate.retrievers.rerank import Reranked

                def opened() -> Retriever:
                    inner = filtered(own, context.where) if own else open_in(context.mode)
                    return Reranked(inner, reranker)

                return named.search_with(opened, [query], k, measured=measured)
            if own:
                found = filtered(own, context.where)
                return named.search_with(lambda: found, [query], k, measured=measured)
            return named.search_index(open_in, context.mode, [query], k, measured=measured)

        (found,) = await in_thread(resources.store(context), search)
        return found

    def check_budget(self, *, calls: int = 0, retrievals: int = 0, tokens: int = 0) -> None:
        """Check that the turn may still spend this much.

        Raises:
            BudgetSpent: It may not; names the amount used and the setting.
        """
        answer = int((self.context.max_total_tokens or 0) * ANSWER_SHARE)
        for setting, more, for_answer in (
            ("max_calls", calls, 1),
            ("max_retrievals", retrievals, 0),
            ("max_total_tokens", tokens, answer),
        ):
            maximum = getattr(self.context, setting)
            used, kept = self._used(setting), for_answer * self.leaves_room
            if more and maximum is not None and used + more + kept > maximum:
                keeps = f" and keeps {kept} for the answer" if kept else ""
                raise BudgetSpent(
                    f"the turn has used {used} of {maximum} ({setting}){keeps}, and needs {more} "
                    f"more; raise {setting}, or ask a new question"
                )

    def _used(self, setting: str) -> int:
        total = self.total()
        return sum(total[name] for name in COUNTED[setting])

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

    def ms(self) -> float:
        """Return how long the visit has taken, in milliseconds."""
        return max(0.0, round((self.now() - self.began) * 1000, 1))  # a clock may be set back

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
        """Return the time until the turn's deadline; 0 if it has passed, inf if there is none.

        Only the time of its nodes counts: pauses between them do not.
        """
        if self.context.max_seconds is None:
            return math.inf
        whole = self.context.max_seconds * (1 - ANSWER_SHARE * self.leaves_room)
        return max(0.0, whole - (sum(self.before["ms"].values()) + self.ms()) / 1000)

    async def in_time(self, name: str, work: Coroutine[Any, Any, Value]) -> Value:
        """Wait for work until the turn's deadline.

        Args:
            name: Its name, for the message.
            work: The awaitable.

        Raises:
            DeadlinePassed: It did not end in time, and was cancelled.
            Stopping: The server stops.
        """
        left = self.seconds_left()
        limit = asyncio.timeout(None if left == math.inf else left)
        try:
            if not left or stopping.ended:
                work.close()
                raise TimeoutError
            async with limit:
                stopping.visits.add(limit)
                return await work
        except TimeoutError as error:
            if stopping.ended:
                raise stopping.Stopping("the server is stopping; ask again") from error
            if left and not limit.expired():
                raise
            raise DeadlinePassed(
                f"{name} did not end within the turn's {self.context.max_seconds or 0:g} s "
                "(max_seconds); raise max_seconds, or use a faster model or index"
            ) from error
        finally:
            stopping.visits.discard(limit)
