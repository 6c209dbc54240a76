"""The main graph: start → gate → route → no retrieval, one, or several → generate.

A follow-up of a conversation passes `condense` before the gate.

`graph` is compiled without a checkpointer, because a LangGraph server brings its own;
`build_graph` is for apps.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from langgraph.graph import END, START, StateGraph

from hopgate.classifiers.decision import RouterLike
from hopgate.graphs.compiled import AdaptiveGraph, Page
from hopgate.graphs.edges import add_edges
from hopgate.graphs.multihop import build_multihop
from hopgate.models import chat
from hopgate.nodes.condense import condense
from hopgate.nodes.escalate import escalate
from hopgate.nodes.gate import gate
from hopgate.nodes.generate import generate
from hopgate.nodes.prompts.own import PromptName, check_prompts
from hopgate.nodes.retrieve import retrieve
from hopgate.nodes.route import route
from hopgate.nodes.run.binding import BoundNode
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.conversation import exchanges
from hopgate.nodes.run.internals import SYNC_DURABILITY
from hopgate.nodes.run.limits import Limits, limits_from_environment
from hopgate.nodes.run.runtime import Resources, system_clock
from hopgate.nodes.run.state import Input, Output, Retrieved, State
from hopgate.nodes.start import start
from hopgate.nodes.texts.message import kind_of
from hopgate.retrievers.base import Retriever
from hopgate.retrievers.encoders import as_encoder
from hopgate.retrievers.langchain import as_retriever

if TYPE_CHECKING:
    from langchain_core.documents import BaseDocumentCompressor
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel
    from langchain_core.prompts import BasePromptTemplate
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

    from hopgate.retrievers.rerank import Reranker

    RetrievalGraph = CompiledStateGraph[State, Context, Input, Retrieved]

Result = TypeVar("Result", Output, Retrieved)

STEP_OF: dict[str, Literal["generate", "retrieve", "multihop"]] = {
    "none": "generate",
    "single": "retrieve",
    "multi": "multihop",
}


def build_graph(
    checkpointer: "BaseCheckpointSaver[Any] | None" = None,
    *,
    model: "BaseChatModel | None" = None,
    retriever: "Retriever | VectorStore | BaseRetriever | None" = None,
    reranker: "Reranker | BaseDocumentCompressor | None" = None,
    router: RouterLike | None = None,
    clock: Callable[[], datetime] | None = None,
    limits: Limits | None = None,
    context: Context | None = None,
    instructions: str = "",
    prompts: "Mapping[PromptName, BasePromptTemplate[Any]] | None" = None,
    encoder: "Embeddings | None" = None,
    name: str = "hopgate",
    page: Page | None = None,
) -> AdaptiveGraph:
    """Compile the adaptive graph.

    Args:
        checkpointer: Where conversations and runs are stored; None stores nothing. Each step is
            stored before the next one starts (`durability="sync"`, which a request may override),
            so that a kill loses no step that had finished. Open a database's saver with
            `hopgate.graphs.checkpoints`, so that no row of it can run code.
        model: A LangChain chat model to use instead of the context's `model`.
        retriever: A LangChain vector store or retriever, or any object with
            `search(queries, k)`, to use instead of the context's `index`. An object whose
            `search` takes no `where` cannot be searched with the context's `where`.
        reranker: Reorders whatever is found: a LangChain document compressor, or a cross-encoder
            of `hopgate.retrievers.rerank.load_reranker`.
        router: Any object with `route(questions, alpha)` to use instead of the context's
            `router`.
        clock: Returns the current time as an aware datetime; the gate reads today's date from
            it. None uses the system's clock.
        limits: The operator's limits; None reads `HOPGATE_LIMITS`.
        context: The settings of this graph: a request replaces those that it gives. Inside
            another graph, whose context is not a `Context`, they apply as they are.
        instructions: Instructions for every answer, such as its tone or language; like a
            conversation's system messages, which come after it, it does not reach the decisions.
        prompts: Prompts of your own in place of hopgate's, as LangChain templates: `answer`,
            `answer_with_passages`, `gate`, `condense`, `reason`, `decompose` (docs/prompts.md).
        encoder: LangChain embeddings, for indexes that were built with them; see `build_index`.
        name: The graph's name, which tells tools and traces of several graphs apart.
        page: What a server's page shows: its title, example questions, and the settings that it
            offers. None: hopgate's own page, with all settings.

    Returns:
        The compiled graph: `await graph.ainvoke({"question": …}, context=Context(…))`.

    Raises:
        ValueError: `HOPGATE_LIMITS` cannot be read, or a prompt has other fields than it should.
    """
    if prompts:
        check_prompts(prompts)
    as_encoder(encoder)
    resources = Resources(
        model=chat.wrap(model) if model is not None else None,
        retriever=as_retriever(retriever) if retriever is not None else None,
        reranker=reranker,
        router=router,
        clock=clock or system_clock,
        limits=limits_from_environment() if limits is None else limits,
        context=context,
        instructions=instructions,
        prompts=prompts or {},
        page=page,
    )
    compiled = _wired(resources, Output).compile(checkpointer=checkpointer, name=name)
    graph = AdaptiveGraph.of(compiled, resources)
    return graph if checkpointer is None else graph.with_config(SYNC_DURABILITY)


def without_answer(graph: AdaptiveGraph) -> "RetrievalGraph":
    """Compile a graph that decides and retrieves like another one, and stops before the answer.

    It stores nothing, and `escalate` has no effect, since no answer can be in doubt.

    Args:
        graph: A graph of `build_graph`, whose model, retriever, router, limits and settings apply.

    Returns:
        The compiled graph; its output is a `Retrieved`.
    """
    compiled: Any = _wired(graph.resources, Retrieved).compile(name=graph.name)
    return cast("RetrievalGraph", AdaptiveGraph.of(compiled, graph.resources))


def _wired(
    resources: Resources, output: type[Result]
) -> "StateGraph[State, Context, Input, Result]":
    """Connect the nodes; where the output has no answer, the graph ends before it."""
    builder = StateGraph(State, context_schema=Context, input_schema=Input, output_schema=output)
    answers: bool = "answer" in output.__annotations__
    last = "generate" if answers else END
    builder.add_node("start", BoundNode(start, resources, first=True))
    for node in (condense, gate, route, retrieve, *((generate, escalate) if answers else ())):
        builder.add_node(node.__name__, BoundNode(node, resources))
    builder.add_node("multihop", build_multihop(resources))
    builder.add_edge(START, "start")
    builder.add_edge("condense", "gate")
    builder.add_edge("retrieve", last)
    builder.add_edge("multihop", last)
    add_edges(builder, "start", after_start)
    add_edges(builder, "gate", after_gate, {"generate": last})
    add_edges(builder, "route", after_route, {"generate": last})
    if answers:
        add_edges(builder, "generate", after_generate)
        add_edges(builder, "escalate", after_escalate)
    return builder


def after_start(state: State) -> Literal["condense", "gate"]:
    """Rewrite a follow-up question first, unless it needs no search."""
    follows = exchanges(state["messages"], state["message_id"])
    return "condense" if follows and kind_of(state["decision"]) == "question" else "gate"


def after_gate(state: State) -> Literal["route", "generate"]:
    """Answer directly after a No, unless a person has set a strategy that retrieves."""
    gate, strategy = state["decision"]["gate"], state["decision"].get("strategy")
    wanted = gate["retrieve"] or gate["answer"] == "skipped" or strategy in ("single", "multi")
    return "route" if wanted else "generate"


def after_route(state: State) -> Literal["generate", "retrieve", "multihop"]:
    """Follow the strategy in the state."""
    return STEP_OF[state["decision"]["strategy"]]


def after_generate(state: State) -> Literal["escalate", "__end__"]:
    """Go one strategy deeper if the answer is in doubt, else end the turn."""
    return "escalate" if state["decision"].get("escalate_to") else "__end__"


def after_escalate(state: State) -> Literal["retrieve", "multihop"]:
    """Follow the deeper strategy."""
    return "multihop" if state["decision"]["strategy"] == "multi" else "retrieve"


graph = build_graph()
