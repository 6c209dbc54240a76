"""A benchmark's questions through the real graph, whole or with what RetrievalQA holds fixed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import TypedDict

from hopgate.common.strategies import Strategy
from hopgate.evaluation.metrics import exact_match, f1, match
from hopgate.evaluation.retrievalqa import Example
from hopgate.evaluation.scores import Prediction
from hopgate.graphs.adaptive import build_graph
from hopgate.nodes import gate
from hopgate.nodes.context import FIXED, Context
from hopgate.nodes.demonstrations import load_pool
from hopgate.nodes.runtime import NodeRuntime, Resources, RetrievalFailed
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph


class Question(NamedTuple):
    """A question by its id."""

    id: str
    question: str


_passages: ContextVar[tuple[Hit, ...]] = ContextVar("passages")


class OneRetrieval:
    """Stands in for the router: after a Yes there is always one retrieval, as in RetrievalQA."""

    source = "one-retrieval"

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Label B for every question, whatever α."""
        return [{"A": 0.0, "B": 1.0, "C": 0.0} for _ in questions]


class GivenPassages:
    """A retriever that finds the passages which the data brings for the example being asked.

    The example is known by the task that asks it, not by its text: two examples may ask the same.
    """

    def give(self, passages: tuple[Hit, ...]) -> None:
        """Set what searches of the running task find from now on."""
        _passages.set(passages)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The first `k` passages of the example, for each query."""
        return [list(_passages.get()[:k]) for _ in queries]


class _Loaded:
    """Uses what a context may need once, so that no question's time has its loading in it."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._contexts = set[Context]()
        self._loading = asyncio.Lock()

    async def wait(self, context: Context) -> None:
        """Return when everything is loaded."""
        async with self._loading:
            if context not in self._contexts:
                await self._load(context)
                self._contexts.add(context)

    async def _load(self, context: Context) -> None:
        await self._resources.load_model(context)
        if context.strategy != "none" and context.gate != "never":
            with suppress(RetrievalFailed):  # which the question's own search says better
                await NodeRuntime(context, self._resources).search("warm up", 1)
        if context.strategy == "auto":
            router = await self._resources.load_router(context)
            await asyncio.to_thread(router.route, ["warm up"], context.alpha)
        if context.demos != FIXED:
            pool = await asyncio.to_thread(load_pool, Path(context.demos))
            await asyncio.to_thread(pool.pick, "warm up", 2)


class Examinee:
    """The graph as RetrievalQA asks it: gate, at most one retrieval, answer.

    Attributes:
        resources: The graph's.
        fields: Of its rows.

    Args:
        given: Retrieve each example's own passages; else from the context's index.
    """

    fields = Prediction.__required_keys__

    def __init__(self, given: bool) -> None:
        """Compiles the graph."""
        self._given = GivenPassages() if given else None
        router = OneRetrieval()
        self._graph: CompiledStateGraph[Any, Context, Any, Any] = build_graph(
            retriever=self._given, router=router
        )
        self.resources = Resources(retriever=self._given, router=router)
        self._loaded = _Loaded(self.resources)

    async def answer(self, example: Example, context: Context) -> Prediction:
        """Ask one question and score the answer.

        Raises:
            RuntimeError: If the model or the retriever fails; the message names the question.
        """
        if self._given:
            self._given.give(example.passages)
        await self._loaded.wait(context)
        return scored(example, await _asked(self._graph, example, context))


class Answered(Prediction):
    """What the whole graph decided, answered and spent on one question."""

    strategy: Strategy
    """The path that was taken."""
    stop_reason: str | None
    """Why the loop ended; None where there was none."""


class WholeGraph:
    """The graph as `hopgate ask` runs it, with the index and the router of the context.

    Attributes:
        resources: The graph's.
        fields: Of its rows.
    """

    fields = Answered.__required_keys__

    def __init__(self) -> None:
        """Compiles the graph."""
        self._graph: CompiledStateGraph[Any, Context, Any, Any] = build_graph()
        self.resources = Resources()
        self._loaded = _Loaded(self.resources)

    async def answer(self, example: Example, context: Context) -> Answered:
        """Ask one question and score the answer.

        Raises:
            RuntimeError: If the model or the retriever fails; the message names the question.
        """
        await self._loaded.wait(context)
        result = await _asked(self._graph, example, context)
        strategy = result["decision"]["strategy"]
        prediction = scored(example, result)
        prediction["retrieve"] = strategy != "none"
        stop_reason = result["decision"]["stop_reason"]
        return Answered(**prediction, strategy=strategy, stop_reason=stop_reason)


async def _asked(
    graph: CompiledStateGraph[Any, Context, Any, Any], example: Example, context: Context
) -> dict[str, Any]:
    """What the graph ends with; a retriever that failed is no answer."""
    try:
        result: dict[str, Any] = await graph.ainvoke(
            {"question": example.question}, context=context
        )
    except RuntimeError as error:
        raise RuntimeError(f"question {example.id}: {error}") from error
    for warning in result["decision"]["warnings"]:
        if "the retriever failed" in warning:
            raise RuntimeError(f"question {example.id}: {warning}")
    return result


class Said(TypedDict):
    """What a gate said to one question, and what that cost; a line of a journal."""

    id: str
    question: str
    retrieve: bool
    verdict: str
    value: float | None
    """P(Yes) or uncertainty; None: the gate has none."""
    threshold: float | None
    llm_calls: int
    prompt_tokens: int
    completion_tokens: int


class GateAlone:
    """A gate as the graph asks it, with nothing after it.

    Attributes:
        resources: The graph's.
        fields: Of its rows.
    """

    fields = Said.__required_keys__

    def __init__(self) -> None:
        """Puts stand-ins where the graph has what comes after the gate."""
        self.resources = Resources(retriever=GivenPassages(), router=OneRetrieval())

    async def decide(self, asked: Question, context: Context) -> Said:
        """Ask the gate about one question.

        Raises:
            RuntimeError: If the model fails; the message names the question.
        """
        try:
            runtime = NodeRuntime(context, self.resources)
            decision = await gate.decide(asked.question, runtime)
        except RuntimeError as error:
            raise RuntimeError(f"question {asked.id}: {error}") from error
        value = decision["p_yes"]
        return Said(
            id=asked.id,
            question=asked.question,
            retrieve=decision["retrieve"],
            verdict=decision["answer"],
            value=decision["uncertainty"] if value is None else value,
            threshold=decision["threshold"],
            llm_calls=runtime.usage["llm_calls"],
            prompt_tokens=runtime.usage["prompt_tokens"],
            completion_tokens=runtime.usage["completion_tokens"],
        )


def scored(example: Example, result: dict[str, Any]) -> Prediction:
    """What a run of the graph decided, answered and spent on an example."""
    gate, usage = result["decision"]["gate"], result["usage"]
    answer, golds = result["answer"], example.golds
    return Prediction(
        id=example.id,
        question=example.question,
        source=example.source,
        answerable=example.answerable,
        retrieve=gate["retrieve"],
        verdict=gate["answer"],
        p_yes=gate["p_yes"],
        uncertainty=gate["uncertainty"],
        prediction=answer,
        known=result["decision"]["answered"],
        match=match(answer, golds),
        em=exact_match(answer, golds),
        f1=f1(answer, golds),
        retrieval_steps=usage["retrieval_steps"],
        llm_calls=usage["llm_calls"],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        ms=round(sum(usage["ms"].values()), 1),
    )
