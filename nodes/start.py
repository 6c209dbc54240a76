"""Start: find the turn's question and reset what the last turn left in the state."""

from collections import Counter
from uuid import uuid4

from langchain_core.messages import AnyMessage, HumanMessage

from hopgate.nodes.runtime import NodeRuntime
from hopgate.nodes.state import State, Update, new_turn
from hopgate.nodes.text import check_question, inert


async def start(state: State, runtime: NodeRuntime) -> Update:
    """Start a turn, after checking that everything it will need can be used.

    Raises:
        ValueError: There is no new question, or it or a setting cannot be used.
    """
    context = runtime.context
    await runtime.resources.check(context)
    message = _new_message(state)
    question = check_question(message.text)
    runtime.resources.limits.check_question("question", inert(question))
    return {
        **new_turn(context.alpha, context.multihop, _warnings(message, runtime)),
        "messages": [message],
        "message_id": message.id,
        "original_question": question,
        "standalone": inert(question),
    }


def _warnings(message: AnyMessage, runtime: NodeRuntime) -> list[str]:
    """Name what the request gives and hopgate cannot use."""
    kinds = [] if isinstance(message.content, str) else message.content_blocks
    unread = Counter(block["type"] for block in kinds if block["type"] != "text")
    return [
        *(
            f"the message has {count} part{'s' * (count > 1)} of type {kind!r}, which hopgate "
            "cannot read; only its text was used"
            for kind, count in unread.items()
        ),
        *(
            f"configurable.{name} has no effect; give it as context=Context({name}=…)"
            for name in runtime.misplaced
        ),
    ]


def _new_message(state: State) -> AnyMessage:
    """Return the user message to answer: `question` if given, else the newest message."""
    question = state.get("question")
    messages = state.get("messages", [])
    if question is not None or not messages:
        return HumanMessage(check_question(question), id=str(uuid4()))
    last = messages[-1]
    is_old = last.id == state.get("message_id") and (
        last.text.strip() == state.get("original_question")
    )
    if last.type != "human" or is_old:
        raise ValueError("there is no new question; give one in `question` or a user message")
    return last
