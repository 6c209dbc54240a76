"""hopgate's flow as one would write it plainly: what its graph is compared with.

The same model client, router, index, prompts and depths; no events, no usage, no limits, no checks
of citations, deadlines, budgets or settings, no follow-ups. `ask` is the flow without any graph:
what a question takes of model, router and index. `graph` is it as a small LangGraph graph, which a
LangGraph server can serve.
"""

import asyncio
import re
from datetime import date
from typing import Any, Literal, NamedTuple, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from hopgate.classifiers import Router, load_router
from hopgate.models import chat
from hopgate.nodes import prompts
from hopgate.retrievers import sources
from hopgate.retrievers.base import Hit, Retriever

MODEL = "openai:fake"
PROFILE = "flan-t5-xl"
"""What `profile` "auto" gives for this model."""
ALPHA = 0.4
TOP_K, HOP_K, MAX_HOPS = 5, 3, 4
MAX_TOKENS, THOUGHT_TOKENS = 100, 80
STRATEGIES: dict[str, "Strategy"] = {"A": "none", "B": "single", "C": "multi"}

Strategy = Literal["none", "single", "multi"]


class Parts(NamedTuple):
    """What costs: model, index, router."""

    model: BaseChatModel
    source: Retriever
    router: Router

    async def say(self, prompt: str, tokens: int = MAX_TOKENS) -> str:
        """Ask the model."""
        reply = await self.model.ainvoke([HumanMessage(prompt)], max_tokens=tokens)
        return reply.text.strip()

    async def search(self, query: str, k: int) -> list[Hit]:
        """Search the index."""
        (hits,) = await asyncio.to_thread(self.source.search, [query], k)
        return hits

    async def route(self, question: str) -> Strategy:
        """Ask the router."""
        (probs,) = await asyncio.to_thread(self.router.route, [question], ALPHA)
        return STRATEGIES[max(probs, key=lambda label: probs[label])]

    async def needs(self, question: str) -> bool:
        """Ask the model whether to retrieve."""
        demos = "\n\n".join(
            f"Question: {d.user}\nAnswer: {d.assistant}" for d in prompts.GATE_DEMOS
        )
        instruction = prompts.TA_ARE.format(today=date.today().isoformat())
        shown = f"{instruction}\n\nHere are some examples:\n{demos}"
        reply = await self.say(f"{shown}\n\nQuestion: {question}\nAnswer:")
        return "no" not in reply.lower()

    async def think(self, question: str, passages: list[Hit], thoughts: list[str]) -> str:
        """Ask the model for the next sentence of reasoning."""
        prompt = f"{prompts.REASON}\n\n{grounded(question, passages)}"
        if thoughts:
            prompt += f"\nReasoning: {' '.join(thoughts)}"
        return await self.say(f"{prompt}\nNext sentence:", THOUGHT_TOKENS)

    async def answer(self, question: str, passages: list[Hit]) -> str:
        """Ask the model for the answer."""
        if not passages:
            return await self.say(f"{prompts.DIRECT}\n\nQuestion: {question}\nAnswer:")
        instruction = prompts.GROUNDED + prompts.CITE
        reply = await self.say(f"{instruction}\n\n{grounded(question, passages)}\nAnswer:")
        return re.sub(r"\s*\[\d+\]", "", reply)


def grounded(question: str, passages: list[Hit]) -> str:
    """Lay out passages and question."""
    numbered = [f"[{n}] {hit['title']}\n{hit['text']}" for n, hit in enumerate(passages, 1)]
    return "Paragraph:\n" + "\n\n".join(numbered) + f"\n\nQuestion: {question}"


def joined(passages: list[Hit], found: list[Hit]) -> list[Hit]:
    """Put what is new before what was there."""
    known = {hit["id"] for hit in passages}
    return [*(hit for hit in found if hit["id"] not in known), *passages]


def is_over(thoughts: list[str]) -> bool:
    """Tell whether the loop ends."""
    return "answer is:" in thoughts[-1] or len(thoughts) == MAX_HOPS


async def load(model: str = MODEL) -> Parts:
    """Load the parts; what hopgate loads in the same process is the same."""
    source = await asyncio.to_thread(sources.open_source, sources.SAMPLE)
    router = await asyncio.to_thread(load_router, "builtin", PROFILE)
    return Parts((await chat.load(model)).client, source, router)


async def ask(parts: Parts, question: str) -> str:
    """Answer a question without any graph."""
    passages: list[Hit] = []
    strategy = await parts.route(question) if await parts.needs(question) else "none"
    if strategy == "single":
        passages = await parts.search(question, TOP_K)
    thoughts: list[str] = []
    while strategy == "multi" and not (thoughts and is_over(thoughts)):
        query = thoughts[-1] if thoughts else question
        passages = joined(passages, await parts.search(query, HOP_K))
        thoughts.append(await parts.think(question, passages, thoughts))
    return await parts.answer(question, passages)


class State(TypedDict, total=False):
    """What the plain graph keeps."""

    question: str
    needs: bool
    strategy: Strategy
    passages: list[Hit]
    thoughts: list[str]
    answer: str


class Steps:
    """The plain graph's nodes; the parts are loaded with the first question."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._parts: asyncio.Task[Parts] | None = None

    async def parts(self) -> Parts:
        """Give the parts, loaded once."""
        self._parts = self._parts or asyncio.create_task(load())
        return await self._parts

    async def gate(self, state: State) -> State:
        """Ask the model whether to retrieve."""
        return {"needs": await (await self.parts()).needs(state["question"])}

    async def route(self, state: State) -> State:
        """Ask the router."""
        return {"strategy": await (await self.parts()).route(state["question"])}

    async def retrieve(self, state: State) -> State:
        """Search with the question, or with the newest thought."""
        k = HOP_K if state["strategy"] == "multi" else TOP_K
        query = state["thoughts"][-1] if state.get("thoughts") else state["question"]
        found = await (await self.parts()).search(query, k)
        return {"passages": joined(state.get("passages", []), found)}

    async def reason(self, state: State) -> State:
        """Ask the model for the next sentence of reasoning."""
        thoughts, parts = state.get("thoughts", []), await self.parts()
        thought = await parts.think(state["question"], state["passages"], thoughts)
        return {"thoughts": [*thoughts, thought]}

    async def generate(self, state: State) -> State:
        """Ask the model for the answer."""
        parts = await self.parts()
        return {"answer": await parts.answer(state["question"], state.get("passages", []))}


def after_gate(state: State) -> Literal["route", "generate"]:
    """A No answers directly."""
    return "route" if state["needs"] else "generate"


def after_route(state: State) -> Literal["retrieve", "generate"]:
    """No retrieval, or the first."""
    return "generate" if state["strategy"] == "none" else "retrieve"


def after_retrieve(state: State) -> Literal["reason", "generate"]:
    """Reason in the loop."""
    return "reason" if state["strategy"] == "multi" else "generate"


def after_reason(state: State) -> Literal["retrieve", "generate"]:
    """Go on until the answer is found."""
    return "generate" if is_over(state["thoughts"]) else "retrieve"


def build() -> Any:
    """Compile the plain graph."""
    steps, builder = Steps(), StateGraph(State)
    for node in (steps.gate, steps.route, steps.retrieve, steps.reason, steps.generate):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "gate")
    builder.add_conditional_edges("gate", after_gate)
    builder.add_conditional_edges("route", after_route)
    builder.add_conditional_edges("retrieve", after_retrieve)
    builder.add_conditional_edges("reason", after_reason)
    return builder.compile(name="plain")


graph = build()
