"""Test doubles for the router, the retriever, the clock and the model."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from fake_openai import Messages, Reply, Script
from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

from hopgate.nodes.prompts import templates as prompts
from hopgate.retrievers.base import Hit, passage_id


class FixedRouter:
    """A router that returns the same probabilities for every question and records its calls."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.calls: list[tuple[str, float]] = []

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        self.calls += [(question, alpha) for question in questions]
        return [{label: 0.8 if label == self.label else 0.1 for label in "ABC"} for _ in questions]


class FixedRetriever:
    """A retriever that returns the n-th list for the n-th search, then repeats the last one."""

    def __init__(self, *found: list[Hit]) -> None:
        self.found = list(found)
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        hits = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        return [hits[:k] for _ in queries]


class BreakingRetriever(FixedRetriever):
    """A retriever that fails from search number `at` on, counted from 1."""

    def __init__(self, *found: list[Hit], at: int = 1) -> None:
        super().__init__(*found)
        self.at = at

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if len(self.queries) + 1 >= self.at:
            self.queries += queries
            raise ConnectionError("the vector store is down")
        return super().search(queries, k)


class FreshRetriever(FixedRetriever):
    """A retriever that never runs out of new passages."""

    def __init__(self, text: str = "Some text.") -> None:
        super().__init__([])
        self.text = text
        self._number = count()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        return [[hit(f"Page {next(self._number)}", self.text) for _ in range(k)] for _ in queries]


class Clock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = datetime(2126, 11, 22, tzinfo=UTC)  # far from the system's

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class TalkingModel(SimpleChatModel):
    """A FAKE chat model that replies with `say(call number from 0, last message)`.

    It reports `tokens_per_byte` prompt tokens for each byte of a prompt; None reports no usage.
    """

    say: Callable[[int, str], str]
    tokens_per_byte: float | None = None
    prompts: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "talking"

    def _call(self, messages: list[BaseMessage], *_: Any, **__: Any) -> str:
        self.prompts.append("\n".join(message.text for message in messages))
        return self.say(len(self.prompts) - 1, messages[-1].text)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        reply = AIMessage(self._call(messages))
        if self.tokens_per_byte is not None:
            tokens = int(len(self.prompts[-1].encode()) * self.tokens_per_byte)
            reply.usage_metadata = UsageMetadata(
                input_tokens=tokens, output_tokens=1, total_tokens=tokens + 1
            )
        return ChatResult(generations=[ChatGeneration(message=reply)])


def hit(title: str, text: str) -> Hit:
    return Hit(id=passage_id(title, text), title=title, text=text, score=0.5)


LIGHT = hit("Skerrane Light", "Skerrane Light was designed by Ilsabet Corrane. It was lit in 1858.")
CORRANE = hit("Ilsabet Corrane", "Ilsabet Corrane was born in Lissmere. She drew lighthouses.")
FERRY = hit("Ondrith Maid", "The ferry Ondrith Maid carries 640 passengers.")

TASKS = {
    "gate": prompts.VANILLA,
    "condense": prompts.CONDENSE,
    "reason": prompts.REASON,
    "decompose": prompts.DECOMPOSE.partition("{")[0],
    "sub_answer": prompts.SUB_ANSWER,
    "answer": prompts.GROUNDED,
    "direct": prompts.DIRECT,
}
FULL = {"answer": prompts.FULL_GROUNDED, "direct": prompts.FULL}


def task(messages: Messages) -> str:
    """Return the node that sent a prompt."""
    text = "\n".join(str(message["content"]) for message in messages)
    tasks = [*TASKS.items(), *FULL.items()]
    return next(name for name, instruction in tasks if instruction in text)


def by_task(**replies: "Reply | str | list[str] | Callable[[str], str]") -> Script:
    """Return a script for the fake endpoint that replies by node.

    A node has one reply, a list of replies in order, or a function of the last message's text.
    """
    lists = {name: list(reply) for name, reply in replies.items() if isinstance(reply, list)}

    def script(messages: Messages) -> Any:
        name = task(messages)
        if name not in replies:
            return Reply(status=400, error=f"no reply is scripted for {name}")
        if name in lists:
            return lists[name].pop(0)
        reply = replies[name]
        return reply(messages[-1]["content"]) if callable(reply) else reply

    return script
