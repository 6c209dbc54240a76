"""The heavy things that nodes use: given by the app, or loaded by name when first needed."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from langgraph.runtime import Runtime

from hopgate.classifiers.checkpoint import profiles_in
from hopgate.classifiers.profiles import chosen_profile
from hopgate.classifiers.router import load_router
from hopgate.graphs.context import FIXED, Context
from hopgate.graphs.limits import Limits
from hopgate.models import chat
from hopgate.models.chat import ChatModel, Layout
from hopgate.nodes.demonstrations import load_pool
from hopgate.nodes.route import Classifier
from hopgate.retrievers import sources
from hopgate.retrievers.base import Retriever


def system_clock() -> datetime:
    """Return the present moment."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Resources:
    """What an app handed in; whatever is None comes from the request's context.

    `clock` gives the present moment as an aware datetime; `limits` are the operator's.

    Loading happens off the event loop, once per process and setting.
    """

    given_model: ChatModel | None = None
    given_retriever: Retriever | None = None
    given_router: Classifier | None = None
    clock: Callable[[], datetime] = system_clock
    limits: Limits = field(default_factory=Limits)

    def context(self, runtime: Runtime[Context]) -> Context:
        """Return the settings of this request, within the operator's limits.

        Raises:
            ValueError: A setting is beyond its limit, or the settings are those of another graph,
                which LangGraph hands on to what its nodes call.
        """
        given = runtime.context or Context()
        if not isinstance(given, Context):
            raise ValueError(
                f"the context is a {type(given).__name__}, not hopgate's: inside another graph, "
                "give hopgate's with the call, as context=Context()"
            )
        return self.limits.apply(given)

    def admit(self, state: Mapping[str, Any], runtime: Runtime[Context]) -> Context:
        """Return the settings, as every node begins: a run may begin, go on or fork at any.

        Raises:
            ValueError: A setting, or a question in the state, is beyond its limit.
        """
        for name in ("standalone", "next_query"):
            self.limits.check_question(name, state.get(name) or "")
        for sub_question in state.get("plan") or ():
            self.limits.check_question("plan", sub_question)
        return self.context(runtime)

    def is_late(self, began: float | None, context: Context) -> bool:
        """Tell whether a deadline has passed; one that counts from None has not begun to count."""
        if context.max_seconds is None or began is None:
            return False
        # A start that was edited into the future moves the deadline at most as far again.
        return abs(self.clock().timestamp() - began) >= context.max_seconds

    async def check(self, context: Context) -> None:
        """Refuse, before any call is paid for, what this request could not use later.

        Raises:
            ValueError: The model's name, the index, the router or the pool of demonstrations
                is not usable.
        """
        if self.given_model is None:
            chat.resolve(context.model)
        if self.given_retriever is None:
            await asyncio.to_thread(sources.check_source, *_source(context))
        if self.given_router is None and context.strategy == "auto":
            await asyncio.to_thread(self._profile, context)
        if context.demos != FIXED:
            await asyncio.to_thread(load_pool, Path(context.demos))

    async def model(self, context: Context) -> ChatModel:
        """Return the chat model of this request, reading as much evidence as it asks for."""
        model = self.given_model or await chat.load(context.model)
        if self.limits.prompt_chars is not None:
            model = replace(model, prompt_chars=self.limits.prompt_chars)
        if context.max_evidence_tokens is None:
            return model
        return replace(model, evidence_chars=context.max_evidence_tokens * chat.CHARS_PER_TOKEN)

    async def retriever(self, context: Context) -> Retriever:
        """Return the retriever of this request."""
        if self.given_retriever is not None:
            return self.given_retriever
        return await asyncio.to_thread(sources.open_source, *_source(context))

    async def router(self, context: Context) -> Classifier:
        """Return the router of this request."""
        if self.given_router is not None:
            return self.given_router
        profile = await asyncio.to_thread(self._profile, context)
        return await asyncio.to_thread(load_router, context.router, profile)

    def _profile(self, context: Context) -> str | None:
        """Return the router's profile for this request; None: the router's first.

        Raises:
            ValueError: The router has no such profile.
        """
        profiles = profiles_in(context.router)
        if context.profile not in ("auto", *profiles):
            raise ValueError(
                f"profile is {context.profile!r}; the router {context.router!r} has "
                f"{', '.join(profiles)}"
            )
        model = self.given_model.name if self.given_model else chat.resolve(context.model)
        return chosen_profile(context.router, context.profile, model)


def layout_for(model: ChatModel, context: Context) -> Layout:
    """Return the prompt layout: the request's, else what suits the model."""
    return model.layout if context.layout == "auto" else context.layout


def _source(context: Context) -> tuple[str, str, str]:
    return context.index, context.mode, context.rerank
