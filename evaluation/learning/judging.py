"""A judge model for silver labels: it says which of the strategies' answers are right."""

from __future__ import annotations

import re

from typing_extensions import TypedDict

from hopgate.common.strategies import STRATEGIES, Strategy
from hopgate.evaluation.learning.silver import Answers
from hopgate.evaluation.measuring.datasets import Example
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.runtime import NodeRuntime, Resources
from hopgate.nodes.texts.text import as_data

MAX_TOKENS = 20
INSTRUCTION = (
    "You are given a question and numbered answers to it. Reply with the numbers of the answers "
    "that are right, separated by commas, or with 0 if none is right. Reply with nothing else."
)
_REPLY = re.compile(r"[\s\[(]*\d+(\s*(,|and)\s*\d+)*[\s\])]*\.?\s*")


class Candidates(TypedDict):
    """The answers to one question."""

    id: str
    question: str
    answers: dict[Strategy, str]


class Judged(TypedDict):
    """The judge model's verdict on one question; a line of a journal."""

    id: str
    right: list[Strategy] | None
    """The strategies whose answer is right; None if the reply names no answer that exists."""


class JudgeModel:
    """Asks a chat model, once for each question; see `runner.Subject`."""

    item, options = Candidates, ()

    def __init__(self) -> None:
        """Share one client among all questions."""
        self._resources = Resources()

    async def check(self, context: Context) -> None:
        """Raise ValueError where a question could not use something later."""
        await self._resources.check(context.model_copy(update={"strategy": "none"}))

    async def ask(self, item: Candidates, context: Context) -> Judged:
        """Ask about one question.

        Raises:
            RuntimeError: The model failed; the message names the question.
        """
        runtime = NodeRuntime(context, self._resources)
        layout = (await runtime.model()).layout
        texts = list(dict.fromkeys(item["answers"].values()))
        request = _request(item["question"], texts)
        prompt = prompts.render(layout, INSTRUCTION, request, cue="Right answers:")
        try:
            reply = await runtime.complete(prompt, max_tokens=MAX_TOKENS)
        except RuntimeError as error:
            raise RuntimeError(f"question {item['id']}: {error}") from error
        numbers, right = read_reply(reply.text, len(texts)), None
        if numbers is not None:
            named = [texts[number - 1] for number in numbers]
            right = [name for name in STRATEGIES if item["answers"].get(name) in named]
        return Judged(id=item["id"], right=right)


def candidates(example: Example, answers: Answers) -> Candidates:
    """Return the answers to one question that the judge model compares."""
    known = {name: each["prediction"] for name, each in answers.items() if each["known"]}
    return Candidates(id=example.id, question=example.question, answers=known)


def read_reply(reply: str, count: int) -> list[int] | None:
    """Return the numbers that a reply names, none for 0; None if it is not such a list."""
    if not _REPLY.fullmatch(reply):
        return None
    numbers = [int(each) for each in re.findall(r"\d+", reply)]
    if numbers == [0]:
        return []
    return numbers if all(1 <= each <= count for each in numbers) else None


def _request(question: str, texts: list[str]) -> str:
    listed = "\n".join(f"{at}. {as_data(text)}" for at, text in enumerate(texts, 1))
    return f"Question: {as_data(question)}\n\nAnswers:\n{listed}"
