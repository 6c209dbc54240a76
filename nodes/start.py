"""Start: find the turn's message and its kind, and reset the last turn's values."""

from uuid import uuid4

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.types import Overwrite

from hopgate.nodes.run.conversation import attachments, earlier, system_text
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import Decision, State, Update
from hopgate.nodes.texts.message import QUERY_CHARS, MessageDecision, classify, query
from hopgate.nodes.texts.text import MAX_QUESTION_CHARS, check_message, inert

FORCED = MessageDecision(
    kind="question", source="rules", reason="short answers take every message for a question"
)


async def start(state: State, runtime: NodeRuntime) -> Update:
    """Start a turn, after checking that everything it will need can be used.

    Raises:
        ValueError: There is no new message, or it or a setting cannot be used.
    """
    context = runtime.context
    await runtime.resources.check(context)
    message = _new_message(state)
    text = _text(message)
    runtime.resources.limits.check_message(text)
    short = context.answers == "short"
    question = inert(query(text, MAX_QUESTION_CHARS if short else QUERY_CHARS))
    asked = FORCED.copy() if short else _asked_for(text, state, message)
    decision = Decision(
        route=None,
        stop_reason=None,
        escalate_to=None,
        escalated=[],
        warnings=[],
        alpha=await runtime.alpha(),
        multihop=context.multihop,
        message=asked,
    )
    return {
        "messages": [message],
        "message_id": message.id,
        "original_question": text,
        "standalone": question,
        "decision": Overwrite(decision),
        **{key: None for key in ("draft", "looked")},  # channels keep their values between turns
        **{key: "" for key in ("next_query", "answer")},
        **{key: Overwrite([]) for key in ("evidence", "hops")},
        **{key: [] for key in ("sub_questions", "citations")},
    }


def _asked_for(text: str, state: State, message: AnyMessage) -> MessageDecision:
    messages = state.get("messages", [])
    said = [(each.type, each.text) for each in earlier(messages, message.id or "")]
    return classify(text, said, system_text(messages))


def _new_message(state: State) -> AnyMessage:
    """Return the user message to answer: `question` if given, else the newest message."""
    question = state.get("question")
    messages = state.get("messages", [])
    if question is not None or not messages:
        return HumanMessage(check_message(question), id=str(uuid4()))
    last = messages[-1]
    is_old = last.id == state.get("message_id") and (
        last.text.strip() == state.get("original_question")
    )
    if last.type != "human" or is_old:
        raise ValueError("there is no new question; give one in `question` or a user message")
    return last


def _text(message: AnyMessage) -> str:
    """Return a message's text, which may be missing beside an image or a file."""
    if attachments(message) and not message.text.strip():
        return ""
    return check_message(message.text)
