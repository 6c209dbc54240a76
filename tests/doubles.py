"""Stand-ins for the router, the retriever and the model, each named for what it does."""

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

from hopgate.nodes import prompts
from hopgate.retrievers.base import Hit, passage_id


class FixedRouter:
    """A router that gives every question the same probabilities, and records what it was asked."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.asked: list[tuple[str, float]] = []

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        self.asked += [(question, alpha) for question in questions]
        return [{label: 0.8 if label == self.label else 0.1 for label in "ABC"} for _ in questions]


class FixedRetriever:
    """A retriever that answers its n-th search with the n-th list; the last list for good."""

    def __init__(self, *found: list[Hit]) -> None:
        self.found = list(found)
        self.queries: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.queries += queries
        hits = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        return [hits[:k] for _ in queries]


class BreakingRetriever(FixedRetriever):
    """A retriever that goes down at its n-th search, counted from 1."""

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
    """A clock that goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = datetime(2126, 11, 22, tzinfo=UTC)  # far from the system's

    def __call__(self) -> datetime:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class TalkingModel(SimpleChatModel):
    """A FAKE chat model that says what a function makes of the call's number, from 0, and prompt.

    `tokens_per_byte` is what it claims to have read; None claims nothing.
    """

    say: Callable[[int, str], str]
    tokens_per_byte: float | None = None
    asked: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "talking"

    def _call(self, messages: list[BaseMessage], *_: Any, **__: Any) -> str:
        self.asked.append("\n".join(message.text for message in messages))
        return self.say(len(self.asked) - 1, messages[-1].text)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        reply = AIMessage(self._call(messages))
        if self.tokens_per_byte is not None:
            read = int(len(self.asked[-1].encode()) * self.tokens_per_byte)
            reply.usage_metadata = UsageMetadata(
                input_tokens=read, output_tokens=1, total_tokens=read + 1
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


def task(messages: Messages) -> str:
    """Tell which node sent a prompt."""
    text = "\n".join(str(message["content"]) for message in messages)
    return next(name for name, instruction in TASKS.items() if instruction in text)


def by_task(**replies: "Reply | str | list[str] | Callable[[str], str]") -> Script:
    """Script the fake endpoint by node: a reply, a list of them in order, or a function.

    The function gets the text of the last message.
    """
    lists = {name: list(said) for name, said in replies.items() if isinstance(said, list)}

    def script(messages: Messages) -> Any:
        name = task(messages)
        if name not in replies:
            return Reply(status=400, error=f"no reply is scripted for {name}")
        if name in lists:
            return lists[name].pop(0)
        said = replies[name]
        return said(messages[-1]["content"]) if callable(said) else said

    return script
