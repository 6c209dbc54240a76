"""hopgate as middleware of LangChain agents: passages, if the user's message needs any.

>>> agent = create_agent(model, tools, middleware=[AdaptiveMiddleware()])
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain.agents.middleware.types import OmitFromInput
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.runtime import Runtime

from hopgate.graphs import adaptive
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.models.chat import CHARS_PER_TOKEN, ChatModel
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.state import Input, Retrieved
from hopgate.nodes.texts.text import check_message

log = logging.getLogger(__name__)


class AdaptiveState(AgentState[Any]):
    """The agent's state, with hopgate's decision and passages for the user's newest message."""

    hopgate: NotRequired[Annotated[Retrieved | None, OmitFromInput]]


class AdaptiveMiddleware(AgentMiddleware[AdaptiveState, Any, Any]):
    """Decides before the model is called whether and how deep to retrieve, and adds the passages.

    It decides once for each message of the user, in the light of the conversation. Every model
    call of that turn then sees the passages below the message, as data; the stored messages stay
    as they are. The agent's state keeps the decisions and passages as `hopgate`: `[2]` in the
    answer is its `evidence[1]`. A message without text is left alone; then `hopgate` is None.
    """

    state_schema = AdaptiveState

    def __init__(
        self, graph: AdaptiveGraph | None = None, *, context: Context | None = None
    ) -> None:
        """Choose the graph that decides and searches.

        Args:
            graph: A graph of `build_graph`, for a model, a retriever or a router of your own; None
                is `hopgate.graph`. The model of the agent is not asked for decisions.
            context: Settings; the others come from the graph.
        """
        super().__init__()
        graph = graph or adaptive.graph
        self._context = (context or Context()).over(graph.defaults)
        self._retrieval = adaptive.without_answer(graph)

    def before_agent(self, state: AdaptiveState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Retrieve for the user's message, or decide against it."""
        if not _is_new(state):
            return None
        asked = _asked(state["messages"])
        found = self._retrieval.invoke(asked, context=self._context) if asked else None
        return {"hopgate": found}

    async def abefore_agent(
        self, state: AdaptiveState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Retrieve for the user's message, or decide against it."""
        if not _is_new(state):
            return None
        asked = _asked(state["messages"])
        found = await self._retrieval.ainvoke(asked, context=self._context) if asked else None
        return {"hopgate": found}

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the passages."""
        return handler(self._with_passages(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Call the model with the passages."""
        return await handler(self._with_passages(request))

    def _with_passages(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        found: Retrieved | None = request.state.get("hopgate")  # type: ignore[assignment]
        if not found or not found["evidence"]:
            return request
        tokens = self._context.max_evidence_tokens
        chars = ChatModel.evidence_chars if tokens is None else tokens * CHARS_PER_TOKEN
        text = prompts.found(prompts.fit(found["evidence"], chars))
        return request.override(messages=_below_the_question(request.messages, text))


def _is_new(state: AdaptiveState) -> bool:
    """Return whether the run starts with a message of the user, and does not resume a turn."""
    messages = state["messages"]
    return bool(messages) and isinstance(messages[-1], HumanMessage)


def _asked(messages: Sequence[AnyMessage]) -> Input | None:
    """Return the conversation without tool calls; None if its last message is not a question."""
    try:
        check_message(messages[-1].text)
    except ValueError as error:
        log.warning("the agent's message is answered without retrieval: %s", error)
        return None
    return {"messages": [message for message in messages if _is_said(message)]}


def _is_said(message: AnyMessage) -> bool:
    is_reply = isinstance(message, AIMessage) and not message.tool_calls
    return isinstance(message, HumanMessage) or is_reply


def _below_the_question(messages: Sequence[AnyMessage], text: str) -> list[AnyMessage]:
    """Return the messages with a text below the user's newest one, or first if there is none."""
    human = [at for at, message in enumerate(messages) if isinstance(message, HumanMessage)]
    if not human:
        return [HumanMessage(text), *messages]
    at = human[-1]
    content = messages[at].content
    both = (
        f"{content}\n\n{text}"
        if isinstance(content, str)
        else [*content, {"type": "text", "text": text}]
    )
    return [*messages[:at], messages[at].model_copy(update={"content": both}), *messages[at + 1 :]]
