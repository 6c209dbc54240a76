"""The main graph: condense → gate → route → none, one or several retrievals → generate.

`graph` is compiled without a checkpointer (a LangGraph server brings its own);
`build_graph` is for apps.
"""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Overwrite

from hopgate.graphs import events
from hopgate.graphs import limits as limit_reading
from hopgate.graphs.context import Context
from hopgate.graphs.decisions import gate_decision
from hopgate.graphs.events import AnswerEvent, EscalateEvent, GateEvent, RouteEvent
from hopgate.graphs.limits import Limits
from hopgate.graphs.multihop import build_multihop
from hopgate.graphs.resources import Resources, layout_for, system_clock
from hopgate.graphs.state import (
    Decision,
    Draft,
    Escalation,
    Hop,
    Input,
    Output,
    State,
    new_usage,
    spend,
)
from hopgate.models import chat
from hopgate.models.chat import Completion
from hopgate.nodes import condense as condensing
from hopgate.nodes import generate as generating
from hopgate.nodes import prompts
from hopgate.nodes import retrieve as retrieving
from hopgate.nodes import route as routing
from hopgate.retrievers.base import Retriever, as_retriever

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

Update = dict[str, Any]

DEEPER: dict[routing.Strategy, routing.Strategy] = {"none": "single", "single": "multi"}

# Where LangGraph reads the default of `durability`; it has no setting at compile time.
DURABILITY = "__pregel_durability"


class Steps:
    """The graph's nodes.

    Each reads state, calls one function of `hopgate.nodes`, and returns what changed.
    """

    def __init__(self, resources: Resources) -> None:
        """Keep what the nodes share."""
        self._resources = resources

    async def condense(self, state: State, runtime: Runtime[Context]) -> Update:
        """Start a turn: find the question, reset the turn's state, resolve a follow-up."""
        started, began = time.perf_counter(), self._resources.clock().timestamp()
        context = self._resources.context(runtime)
        await self._resources.check(context)
        message = _new_message(state)
        question = condensing.check_question(message.text)
        bare = prompts.inert(question)
        self._resources.limits.check_question("question", bare)
        history = _turns(state.get("messages", []), message)
        standalone, completions = bare, list[Completion]()
        if history:
            model = await self._resources.model(context)
            rewritten, completion = await condensing.condense(
                model, question, history, layout_for(model, context)
            )
            completions.append(completion)
            if self._resources.limits.fits(rewritten := prompts.inert(rewritten)):
                standalone = rewritten
        return {
            "messages": [message],
            "asked": question,
            "standalone": standalone,
            "message_id": message.id,
            "decision": Overwrite(
                Decision(
                    alpha=context.alpha, route=None, stop_reason=None, escalated=[], warnings=[]
                )
            ),
            "draft": None,
            "evidence": Overwrite([]),
            "plan": [],
            "began": began,
            "hops": Overwrite([]),
            "next_query": "",
            "answer": "",
            "citations": [],
            "usage": spend(new_usage(), "condense", started, completions),
        }

    async def gate(self, state: State, runtime: Runtime[Context]) -> Update:
        """Decide whether the question needs outside knowledge."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        question = state["standalone"]
        decision, completions = await gate_decision(question, context, self._resources)
        update = Decision(gate=decision)
        if after_gate({"decision": update}) == "generate":
            update |= Decision(strategy="none")
        drafted = decision["mode"] == "draft" and decision["reply"]
        events.send(runtime, GateEvent(event="gate", **decision))
        return {
            "decision": update,
            "draft": Draft(question=question, text=decision["reply"]) if drafted else None,
            "usage": spend(state["usage"], "gate", started, completions),
        }

    async def route(self, state: State, runtime: Runtime[Context]) -> Update:
        """Choose how deep to retrieve, at the request's α."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        edited = state["decision"].get("strategy")
        if edited == "single" or edited == "multi":
            decision = routing.forced(edited, context.alpha, "the strategy was set in the state")
        elif context.strategy == "auto":
            router = await self._resources.router(context)
            gate = state["decision"]["gate"]
            decision = await routing.classify(router, state["standalone"], context.alpha, gate)
        else:
            reason = f"the request asks for strategy {context.strategy!r}"
            decision = routing.forced(context.strategy, context.alpha, reason)
        strategy = routing.STRATEGIES[decision["label"]]
        events.send(runtime, RouteEvent(event="route", strategy=strategy, **decision))
        return {
            "decision": Decision(route=decision, strategy=strategy),
            "usage": spend(state["usage"], "route", started),
        }

    async def retrieve(self, state: State, runtime: Runtime[Context]) -> Update:
        """Search once with the question itself."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        query = state["standalone"]
        retriever = await self._resources.retriever(context)
        warnings = list(state["decision"].get("warnings", []))
        try:
            evidence = await retrieving.search(retriever, query, context.top_k)
        except retrieving.RetrievalFailed as error:
            evidence = []
            warnings.append(f"{error}; answered without sources")
        hop = Hop(query=query, passage_ids=[hit["id"] for hit in evidence], thought="")
        events.send(runtime, events.hop(1, query, evidence))
        return {
            "evidence": evidence,
            "hops": [hop],
            "decision": Decision(warnings=warnings),
            "usage": spend(state["usage"], "retrieve", started, steps=1),
        }

    async def generate(self, state: State, runtime: Runtime[Context]) -> Update:
        """Answer, over the evidence if there is any, and check the citations."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        model = await self._resources.model(context)
        answer, completions = await self._answer(state, model, context)
        warnings = list(state["decision"].get("warnings", []))
        if state["hops"] and not state["evidence"] and not warnings:
            warnings.append("nothing was found; answered without sources")
        warnings += answer.warnings
        if model.tiny:
            warnings.append(f"{model.name} is a tiny model: its answers are often wrong")
        told = AnswerEvent(event="answer", text=answer.text, citations=answer.citations)
        events.send(runtime, told)
        return {
            "answer": answer.text,
            "citations": answer.citations,
            "messages": [AIMessage(answer.text, id=completions[0].id if completions else None)],
            "decision": Decision(
                model=model.name, answered=answer.known, doubt=answer.doubt, warnings=warnings
            ),
            "usage": spend(state["usage"], "generate", started, completions),
        }

    async def _answer(
        self, state: State, model: chat.ChatModel, context: Context
    ) -> tuple[generating.Answer, list[Completion]]:
        """Take the gate's draft where the model would be asked the same again, else ask it."""
        question, evidence = state["standalone"], state["evidence"]
        draft = state.get("draft")
        if draft and draft["question"] == question and not evidence:
            return generating.read(draft["text"], [], question), []
        answer, completion = await generating.generate(
            model, question, evidence, layout_for(model, context)
        )
        return answer, [completion]

    async def escalate(self, state: State, runtime: Runtime[Context]) -> Update:
        """Take the answer back and go one strategy deeper."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        decision = state["decision"]
        step = Escalation(
            {
                "from": decision["strategy"],
                "to": DEEPER[decision["strategy"]],
                "reason": str(decision["doubt"]),
            }
        )
        events.send(runtime, EscalateEvent({"event": "escalate", **step}))
        # A plan counts its own hops; without one the loop thinks on over what is there.
        planned = context.multihop == "decompose" or bool(state["plan"])
        anew = step["to"] == "multi" and planned
        return {
            "messages": [RemoveMessage(id=str(state["messages"][-1].id))],
            "answer": "",
            "citations": [],
            **({"hops": Overwrite([])} if anew else {}),
            "decision": Decision(
                strategy=step["to"], escalated=[*decision.get("escalated", []), step], warnings=[]
            ),
            "usage": spend(state["usage"], "escalate", started),
        }

    def after_route(self, state: State) -> Literal["generate", "retrieve", "multihop"]:
        """Follow the strategy in the state, which a person may have edited.

        Raises:
            ValueError: The edited strategy is not one of the three, or not allowed here.
        """
        strategy = state["decision"]["strategy"]
        self._resources.limits.check_strategy(strategy)
        match strategy:
            case "none":
                return "generate"
            case "single":
                return "retrieve"
            case "multi":
                return "multihop"
        raise ValueError(f"decision.strategy is {strategy!r}; use none, single or multi")

    def after_generate(
        self, state: State, runtime: Runtime[Context]
    ) -> Literal["escalate", "__end__"]:
        """Go deeper where the answer is in doubt, the request allows it and it can help.

        A path that the request itself chose is kept, a search that found nothing is not
        repeated, and after the deadline the answer stays.
        """
        context, decision = self._resources.context(runtime), state["decision"]
        chosen = context.strategy != "auto" or context.gate == "never"
        in_vain = bool(state["hops"]) and not state["evidence"]
        if not decision.get("doubt") or chosen or in_vain or decision["strategy"] not in DEEPER:
            return "__end__"
        if self._resources.is_late(state["began"], context):
            return "__end__"
        return "escalate" if state["usage"]["retrieval_steps"] < context.escalate else "__end__"

    def after_escalate(self, state: State) -> Literal["retrieve", "multihop"]:
        """Search once, or go on in the loop."""
        strategy = state["decision"]["strategy"]
        self._resources.limits.check_strategy(strategy)
        return "multihop" if strategy == "multi" else "retrieve"


def after_gate(state: State) -> Literal["route", "generate"]:
    """A No answers directly; everything else goes to the router.

    A person may have edited `gate.retrieve`, or set `strategy` already.
    """
    gate = state["decision"]["gate"]
    strategy = state["decision"].get("strategy")
    wanted = gate["retrieve"] or gate["answer"] == "skipped" or strategy in ("single", "multi")
    return "route" if wanted else "generate"


def _new_message(state: State) -> AnyMessage:
    """Return the user message to answer: `question` if it was given, else the newest message.

    Raises:
        ValueError: The input brings neither, or only what was answered before.
    """
    question = state.get("question")
    messages = state.get("messages", [])
    if question is not None or not messages:
        return HumanMessage(condensing.check_question(question), id=str(uuid4()))
    last = messages[-1]
    answered = last.id == state.get("message_id") and last.text.strip() == state.get("asked")
    if last.type != "human" or answered:
        raise ValueError("there is no new question; give one in `question` or a user message")
    return last


def _turns(messages: Sequence[AnyMessage], current: AnyMessage) -> list[condensing.Turn]:
    """Pair the answered questions before `current` with their answers."""
    earlier = [message for message in messages if message.id != current.id]
    return [
        condensing.Turn(asked.text, answered.text)
        for asked, answered in pairwise(earlier)
        if asked.type == "human" and answered.type == "ai"
    ]


def build_graph(
    checkpointer: "BaseCheckpointSaver[Any] | None" = None,
    *,
    model: "BaseChatModel | None" = None,
    retriever: "Retriever | VectorStore | BaseRetriever | None" = None,
    router: routing.Classifier | None = None,
    clock: Callable[[], datetime] | None = None,
    limits: Limits | None = None,
) -> "CompiledStateGraph[State, Context, Input, Output]":
    """Compile the adaptive graph.

    Args:
        checkpointer: Where conversations and runs are kept; None keeps nothing. Each step is
            stored before the next begins (`durability="sync"`, which a request may override),
            so that a kill costs no step that had finished.
        model: A LangChain chat model to use instead of the context's `model`.
        retriever: A LangChain vector store or retriever, or any object with
            `search(queries, k)`, to use instead of the context's `index`.
        router: Any object with `route(questions, alpha)` to use instead of the
            context's `router`.
        clock: Gives the present moment, an aware datetime, of which the gate reads today's
            date; None is the system's.
        limits: What a request may ask for; None reads them from `HOPGATE_LIMITS`.

    Returns:
        The compiled graph: `await graph.ainvoke({"question": …}, context=Context(…))`.

    Raises:
        ValueError: `HOPGATE_LIMITS` holds no limits.
    """
    resources = Resources(
        given_model=chat.wrap(model) if model is not None else None,
        given_retriever=as_retriever(retriever) if retriever is not None else None,
        given_router=router,
        clock=clock or system_clock,
        limits=limit_reading.from_environment() if limits is None else limits,
    )
    steps = Steps(resources)
    builder = StateGraph(State, context_schema=Context, input_schema=Input, output_schema=Output)
    builder.add_node("condense", steps.condense)
    builder.add_node("gate", steps.gate)
    builder.add_node("route", steps.route)
    builder.add_node("retrieve", steps.retrieve)
    builder.add_node("multihop", build_multihop(resources))
    builder.add_node("generate", steps.generate)
    builder.add_edge(START, "condense")
    builder.add_edge("condense", "gate")
    builder.add_conditional_edges("gate", after_gate)
    builder.add_conditional_edges("route", steps.after_route)
    builder.add_edge("retrieve", "generate")
    builder.add_edge("multihop", "generate")
    builder.add_conditional_edges("generate", steps.after_generate)
    builder.add_node("escalate", steps.escalate)
    builder.add_conditional_edges("escalate", steps.after_escalate)
    compiled = builder.compile(checkpointer=checkpointer, name="hopgate")
    if checkpointer is None:
        return compiled
    return compiled.with_config({"configurable": {DURABILITY: "sync"}})


graph = build_graph()
