"""The conversation before the message that a turn answers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage

from hopgate.nodes.run.spending import estimated_tokens
from hopgate.nodes.texts.text import inert, without_marks

IMAGE_TOKENS = 1_000
"""Of an image or a file in a prompt, roughly."""


class Exchange(NamedTuple):
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


def system_text(messages: Sequence[AnyMessage], instructions: str = "") -> str:
    """Return the app's instructions and the conversation's system messages, each text once.

    Clients may repeat their system messages each turn.
    """
    found = [inert(message.text).strip() for message in messages if message.type == "system"]
    return "\n\n".join(dict.fromkeys(filter(None, [instructions.strip(), *found])))


def exchanges(messages: Sequence[AnyMessage], current_id: str) -> list[Exchange]:
    """Return the earlier questions of a conversation that were answered, oldest first."""
    said = earlier(messages, current_id)
    return [
        Exchange(question.text, answer.text)
        for question, answer in pairwise(said)
        if question.type == "human" and answer.type == "ai"
    ]


def earlier(messages: Sequence[AnyMessage], current_id: str) -> list[BaseMessage]:
    """Return the messages of user and assistant before a message.

    Tool calls are left out, and so are marks, which cited other passages.
    """
    found: list[BaseMessage] = []
    for each in messages:
        if each.id == current_id:
            break
        if isinstance(each, HumanMessage):
            found.append(HumanMessage(inert_content(each)))
        elif isinstance(each, AIMessage) and each.text and not each.tool_calls:
            cited = each.additional_kwargs.get("citations") or []
            found.append(AIMessage(without_marks(each.text, cited)))
    return found


def trimmed(messages: Sequence[BaseMessage], tokens: int) -> list[BaseMessage]:
    """Return the newest messages that have room, from a message of the user on."""
    from langchain_core.messages import trim_messages

    def count(some: Sequence[BaseMessage]) -> int:
        return sum(map(message_tokens, some))

    if count(messages) <= tokens:
        return list(messages)
    return trim_messages(
        list(messages), max_tokens=tokens, token_counter=count, strategy="last", start_on="human"
    )


def message_tokens(message: BaseMessage) -> int:
    """Return about how many tokens a message has, rather too many than too few."""
    return estimated_tokens([message.text]) + IMAGE_TOKENS * len(attachments(message))


def inert_content(message: BaseMessage) -> Any:
    """Return a message's content, with its texts made inert."""
    if isinstance(message.content, str):
        return inert(message.content)
    texts = inert(message.text)
    return [*([{"type": "text", "text": texts}] if texts else []), *attachments(message)]


def attachments(message: BaseMessage) -> list[Any]:
    """Return the parts of a message that are not text: images, files, audio."""
    if isinstance(message.content, str):
        return []
    return [
        part for part in message.content if isinstance(part, dict) and part.get("type") != "text"
    ]
