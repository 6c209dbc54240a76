"""A minimal version of hopgate's flow, as the baseline for its graph.

It has the same model client, router, index, prompts and depths, but no events, usage, limits,
follow-ups, or checks of citations, deadlines, budgets and settings. `ask` is the flow without a
graph: only the calls to model, router and index. `graph` is the same as a small LangGraph graph,
which a LangGraph server can serve.
"""

import asyncio
import re
from datetime import date
from typing import Any, Literal, NamedTuple, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from hopgate.classifiers.router import Router, load_router
from hopgate.common.strategies import LABELS, STRATEGY_OF, Strategy
from hopgate.models import chat
from hopgate.nodes import prompts
from hopgate.retrievers import sources
from hopgate.retrievers.base import Hit, Retriever

MODEL = "openai:fake"
PROFILE = "flan-t5-xl"
"""The profile that `auto` selects for this model."""
ALPHA = 0.4
TOP_K, HOP_K, MAX_HOPS = 5, 3, 4
MAX_TOKENS, THOUGHT_TOKENS = 100, 80


class Parts(NamedTuple):
    """The expensive parts: model, index and router."""

    model: BaseChatModel
    source: Retriever
    router: Router

    async def complete(self, prompt: str, tokens: int = MAX_TOKENS) -> str:
        """Return the model's reply to a prompt."""
        reply = await self.model.ainvoke([HumanMessage(prompt)], max_tokens=tokens)
        return reply.text.strip()

    async def search(self, query: str, k: int) -> list[Hit]:
        """Return the `k` best passages."""
        (hits,) = await asyncio.to_thread(self.source.search, [query], k)
        return hits

    async def route(self, question: str) -> Strategy:
        """Return the strategy of the likeliest label."""
        (probs,) = await asyncio.to_thread(self.router.route, [question], ALPHA)
        return STRATEGY_OF[max(LABELS, key=lambda label: probs[label])]

    async def needs_retrieval(self, question: str) -> bool:
        """Ask the model whether to retrieve."""
        demos = "\n\n".join(
            f"Question: {d.user}\nAnswer: {d.assistant}" for d in prompts.GATE_DEMOS
        )
        instruction = prompts.TA_ARE.format(today=date.today().isoformat())
        shown = f"{instruction}\n\nHere are some examples:\n{demos}"
        reply = await self.complete(f"{shown}\n\nQuestion: {question}\nAnswer:")
        return "no" not in reply.lower()

    async def think(self, question: str, passages: list[Hit], thoughts: list[str]) -> str:
        """Return the next sentence of reasoning."""
        prompt = f"{prompts.REASON}\n\n{grounded(question, passages)}"
        if thoughts:
            prompt += f"\nReasoning: {' '.join(thoughts)}"
        return await self.complete(f"{prompt}\nNext sentence:", THOUGHT_TOKENS)

    async def answer(self, question: str, passages: list[Hit]) -> str:
        """Return the answer, over passages if there are any."""
        if not passages:
            return await self.complete(f"{prompts.DIRECT}\n\nQuestion: {question}\nAnswer:")
        instruction = prompts.GROUNDED + prompts.CITE
        reply = await self.complete(f"{instruction}\n\n{grounded(question, passages)}\nAnswer:")
        return re.sub(r"\s*\[\d+\]", "", reply)


def grounded(question: str, passages: list[Hit]) -> str:
    """Lay out the passages and the question."""
    numbered = [f"[{n}] {hit['title']}\n{hit['text']}" for n, hit in enumerate(passages, 1)]
    return "Paragraph:\n" + "\n\n".join(numbered) + f"\n\nQuestion: {question}"


def merge(passages: list[Hit], found: list[Hit]) -> list[Hit]:
    """Put new passages in front of the known ones."""
    known = {hit["id"] for hit in passages}
    return [*(hit for hit in found if hit["id"] not in known), *passages]


def is_over(thoughts: list[str]) -> bool:
    """Return whether the loop should stop."""
    return "answer is:" in thoughts[-1] or len(thoughts) == MAX_HOPS


async def load(model: str = MODEL) -> Parts:
    """Load the parts, which hopgate shares if it runs in the same process."""
    source = await asyncio.to_thread(sources.open_source, sources.SAMPLE)
    router = await asyncio.to_thread(load_router, "builtin", PROFILE)
    return Parts((await chat.load(model)).client, source, router)


async def ask(parts: Parts, question: str) -> str:
    """Answer a question without a graph."""
    passages: list[Hit] = []
    strategy = await parts.route(question) if await parts.needs_retrieval(question) else "none"
    if strategy == "single":
        passages = await parts.search(question, TOP_K)
    thoughts: list[str] = []
    while strategy == "multi" and not (thoughts and is_over(thoughts)):
        query = thoughts[-1] if thoughts else question
        passages = merge(passages, await parts.search(query, HOP_K))
        thoughts.append(await parts.think(question, passages, thoughts))
    return await parts.answer(question, passages)


class State(TypedDict, total=False):
    """The plain graph's state."""

    question: str
    retrieve: bool
    strategy: Strategy
    passages: list[Hit]
    thoughts: list[str]
    answer: str


class Nodes:
    """The plain graph's nodes; the first question loads the parts."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._parts: asyncio.Task[Parts] | None = None

    async def parts(self) -> Parts:
        """Return the parts, loaded once."""
        self._parts = self._parts or asyncio.create_task(load())
        return await self._parts

    async def gate(self, state: State) -> State:
        """Ask the model whether to retrieve."""
        return {"retrieve": await (await self.parts()).needs_retrieval(state["question"])}

    async def route(self, state: State) -> State:
        """Choose the strategy."""
        return {"strategy": await (await self.parts()).route(state["question"])}

    async def retrieve(self, state: State) -> State:
        """Search with the newest thought, or with the question."""
        k = HOP_K if state["strategy"] == "multi" else TOP_K
        query = state["thoughts"][-1] if state.get("thoughts") else state["question"]
        found = await (await self.parts()).search(query, k)
        return {"passages": merge(state.get("passages", []), found)}

    async def reason(self, state: State) -> State:
        """Add the next sentence of reasoning."""
        thoughts, parts = state.get("thoughts", []), await self.parts()
        thought = await parts.think(state["question"], state["passages"], thoughts)
        return {"thoughts": [*thoughts, thought]}

    async def generate(self, state: State) -> State:
        """Answer the question."""
        parts = await self.parts()
        return {"answer": await parts.answer(state["question"], state.get("passages", []))}


def after_gate(state: State) -> Literal["route", "generate"]:
    """Answer directly after a No."""
    return "route" if state["retrieve"] else "generate"


def after_route(state: State) -> Literal["retrieve", "generate"]:
    """Answer directly, or search first."""
    return "generate" if state["strategy"] == "none" else "retrieve"


def after_retrieve(state: State) -> Literal["reason", "generate"]:
    """Reason in the loop, else answer."""
    return "reason" if state["strategy"] == "multi" else "generate"


def after_reason(state: State) -> Literal["retrieve", "generate"]:
    """Search again until the loop should stop."""
    return "generate" if is_over(state["thoughts"]) else "retrieve"


def build() -> Any:
    """Compile the plain graph."""
    nodes, builder = Nodes(), StateGraph(State)
    for node in (nodes.gate, nodes.route, nodes.retrieve, nodes.reason, nodes.generate):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "gate")
    builder.add_conditional_edges("gate", after_gate)
    builder.add_conditional_edges("route", after_route)
    builder.add_conditional_edges("retrieve", after_retrieve)
    builder.add_conditional_edges("reason", after_reason)
    return builder.compile(name="plain")


graph = build()
