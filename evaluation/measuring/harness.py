"""The subjects of evaluations: the whole graph, the graph as RetrievalQA runs it, a gate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.evaluation.measuring.datasets import Example
from hopgate.evaluation.measuring.matching import exact_match, f1, match
from hopgate.evaluation.measuring.scores import Answered, Prediction
from hopgate.graphs.adaptive import build_graph
from hopgate.nodes.gate import decide
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.resources import RetrievalFailed
from hopgate.nodes.run.runtime import NodeRuntime, Resources
from hopgate.nodes.texts.text import without_marks
from hopgate.retrievers.base import Hit, Retriever

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph


class Question(NamedTuple):
    """A question and its id."""

    id: str
    question: str


COUNTS = ("llm_calls", "prompt_tokens", "completion_tokens")
"""The usage that a gate's replies record."""


class OneRetrieval:
    """A stand-in for the router: after a Yes there is always one retrieval, as in RetrievalQA."""

    source = "one-retrieval"

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Return label B for every question, whatever α."""
        return [{"A": 0.0, "B": 1.0, "C": 0.0} for _ in questions]


PASSAGES: ContextVar[tuple[Hit, ...]] = ContextVar("passages", default=())
"""The passages of the example that the running task asks about."""


class GivenPassages:
    """A retriever that finds the passages of the current example, in `PASSAGES`.

    The example is identified by the task that asks about it, not by its text: two examples may
    have the same text.
    """

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the first `k` passages of the example, for each query."""
        return [list(PASSAGES.get()[:k]) for _ in queries]


class _Graph:
    """The graph, with an app's retriever and router if they are given; see `runner.Subject`."""

    def __init__(
        self, retriever: Retriever | None = None, router: OneRetrieval | None = None
    ) -> None:
        self._resources = Resources(retriever=retriever, router=router)
        self._graph: CompiledStateGraph[Any, Context, Any, Any] = build_graph(
            retriever=retriever, router=router
        )

    async def check(self, context: Context) -> None:
        """Raise ValueError where a run could not use something later."""
        await self._resources.check(context)

    async def load(self, context: Context) -> None:
        """Load the resources of a context, so that no question's time includes loading."""
        runtime = NodeRuntime(context, self._resources)
        await runtime.model()
        if context.strategy != "none" and context.gate != "never":
            with suppress(RetrievalFailed):  # the question's own search reports it better
                await runtime.search("warm up", 1)
        if context.strategy == "auto":
            await runtime.route("warm up")

    async def _run(self, example: Example, context: Context) -> dict[str, Any]:
        """Return the final state, by default with the papers' short answers.

        A retriever that failed is an error here, not an answer.
        """
        answers = "short" if context.answers == "auto" else context.answers
        context = context.model_copy(update={"answers": answers, "retriever_failure": "error"})
        question = {"question": example.question}
        try:
            result: dict[str, Any] = await self._graph.ainvoke(question, context=context)
        except RuntimeError as error:
            raise RuntimeError(f"question {example.id}: {error}") from error
        return result


class WholeGraph(_Graph):
    """The graph as `hopgate ask` runs it, with the index and the router of the context."""

    async def ask(self, item: Example, context: Context) -> Answered:
        """Ask one question and score the answer.

        Raises:
            RuntimeError: The model or the retriever failed; the message names the question.
        """
        result = await self._run(item, context)
        decision = result["decision"]
        prediction = _scored(item, result)
        prediction["retrieve"] = decision["strategy"] != "none"
        return Answered(
            **prediction,
            strategy=decision["strategy"],
            stop_reason=decision["stop_reason"],
            cited=len(result["citations"]),
            doubt=decision["doubt"],
        )


class SingleRetrievalGraph(_Graph):
    """The graph as RetrievalQA runs it: gate, at most one retrieval, answer.

    Args:
        given: Retrieve each example's own passages instead of searching the context's index.
    """

    def __init__(self, given: bool) -> None:
        """Compile the graph."""
        super().__init__(GivenPassages() if given else None, OneRetrieval())

    async def ask(self, item: Example, context: Context) -> Prediction:
        """Ask one question and score the answer; see `WholeGraph.ask`."""
        PASSAGES.set(item.passages)
        return _scored(item, await self._run(item, context))


class GateAlone(_Graph):
    """The gate as the graph runs it, with nothing after it."""

    def __init__(self) -> None:
        """Replace the steps after the gate with stand-ins."""
        super().__init__(GivenPassages(), OneRetrieval())

    async def ask(self, item: Question, context: Context) -> dict[str, Any]:
        """Ask the gate about one question.

        Returns:
            A line of a journal: `id`, `question`, `retrieve`, `verdict`, `value` (P(Yes) or
            uncertainty; None: the gate has none), `threshold` and `COUNTS`.

        Raises:
            RuntimeError: The model failed; the message names the question.
        """
        runtime = NodeRuntime(context, self._resources)
        try:
            decision = await decide(item.question, runtime)
        except RuntimeError as error:
            raise RuntimeError(f"question {item.id}: {error}") from error
        p_yes = decision["p_yes"]
        return {
            "id": item.id,
            "question": item.question,
            "retrieve": decision["retrieve"],
            "verdict": decision["answer"],
            "value": decision["uncertainty"] if p_yes is None else p_yes,
            "threshold": decision["threshold"],
            **{name: count for name, count in runtime.usage.items() if name in COUNTS},
        }


def _scored(example: Example, result: dict[str, Any]) -> Prediction:
    gate, usage = result["decision"]["gate"], result["usage"]
    answer = without_marks(result["answer"], result["citations"])
    golds = example.golds
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
