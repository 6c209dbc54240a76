"""Replies that are too long or malformed: cut, refused, and read in time."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from doubles import TalkingModel
from fake_openai import COMPLETION_TOKENS, FakeOpenAI, Reply
from langchain_core.messages import AIMessage, HumanMessage

from hopgate.models import chat
from hopgate.models.chat import Completion, ModelError
from hopgate.nodes.answers.reading import read_answer, read_full_answer, settled
from hopgate.nodes.decompose import read_sub_questions
from hopgate.nodes.gate import probability_of_yes, read_verdict, uncertainty
from hopgate.nodes.reason import read_thought
from hopgate.nodes.sub_answer import read_sub_answer
from hopgate.nodes.texts.message import classify, query
from hopgate.nodes.texts.support import support
from hopgate.nodes.texts.text import inert, keep_marks
from hopgate.retrievers.base import Hit

PROMPT = [HumanMessage("Say something.")]


async def complete(**options: Any) -> Completion:
    """Ask the fake endpoint once."""
    return await chat.complete(await chat.load("openai:fake"), PROMPT, **options)


async def test_a_reply_beyond_max_tokens_is_cut(fake: FakeOpenAI) -> None:
    fake.says(Reply("  " + "word " * 10_000))
    found = await complete(max_tokens=8)
    assert found.text == ("word " * 10_000)[: 8 * chat.MOST_CHARS_PER_TOKEN].strip()
    assert found.completion_tokens == COMPLETION_TOKENS  # what the endpoint counted


@pytest.mark.parametrize(
    "position", [{"token": "Yes"}, {"token": "Yes", "logprob": "x"}, "Yes", None]
)
async def test_malformed_log_probabilities_are_an_error_of_the_model(
    fake: FakeOpenAI, position: Any
) -> None:
    logprobs = {"content": [{"token": "Yes", "logprob": -1.0, "top_logprobs": [position]}]}
    message = {"role": "assistant", "content": "Yes"}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    fake.says(Reply(body=json.dumps({"choices": [choice]}).encode()))
    with pytest.raises(ModelError, match="did not answer"):
        await complete(max_tokens=8, logprobs=True)


async def test_a_log_probability_is_at_most_0(fake: FakeOpenAI) -> None:
    fake.says(Reply("Yes", logprobs=[{"Yes": 1e9, "No": float("nan")}]))
    found = await complete(max_tokens=8, logprobs=True)
    assert probability_of_yes(found) == 0.5
    assert 0 <= uncertainty(found) <= 1


LONG = 6_000  # characters
MODEL = chat.wrap(TalkingModel(say=lambda *_: ""))
HIT = Hit(id="1", title="Tower", text="The tower is 330 metres tall.", score=1.0)
READERS: dict[str, Callable[[str], object]] = {
    "_readable": lambda reply: chat._reply_text(MODEL, AIMessage(reply), 100_000),
    "read_verdict": read_verdict,
    "read_answer": lambda reply: read_answer(reply, []),
    "read_answer with evidence": lambda reply: read_answer(reply, [HIT], "How tall is it?"),
    "settled": lambda reply: settled(reply, 3),
    "read_full_answer": lambda reply: read_full_answer(reply, [HIT], "How tall is it?"),
    "classify": lambda reply: classify(reply, [("human", "Hi"), ("ai", reply)], reply),
    "query": query,
    "read_thought": read_thought,
    "read_sub_questions": lambda reply: read_sub_questions(reply, 5),
    "read_sub_answer": read_sub_answer,
    "inert": inert,
    "keep_marks": lambda reply: keep_marks(reply, [1]),
    "support": lambda reply: support(reply, "How tall is it?", [HIT["text"]]),
}
PATTERNS = (
    "<think>", "</think>", "[1] ", " [1]", "[1, 1] ", "1 ", "1. ", "1.\n", "(1) ", "q1. ", "- ",
    "\n", "\t", " ", "\xa0", "\u3000", " \n", "a", "a b ", "yes or ", "yes/", "yes ", "[yes] ",
    "answer is ", "answer: ", "say ", ":", ": ", ". ", "...", "? ", "？", "。", "—", "|", "/",
    "[", "[ ", "{", "<", "```\n", "中", "中。", "ไท", "가 ", "e\u0301", "\u0301", "\u200d", "ﷺ",
    "I don't know ", "3. Mai ", "no idea ", "yes" + "\n" * 199, "no" + "." * 199, "q" + " " * 199,
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_reading_the_longest_reply_takes_no_time(reader: str) -> None:
    """About 0.01 s each; what grows with the square of the length takes seconds and more."""
    for pattern in PATTERNS:
        many = (pattern * LONG)[: LONG - 20]
        for reply in (many, f"a{many}", f"[{many}a"):
            started = time.process_time()
            READERS[reader](reply)
            assert time.process_time() - started < 0.5, (pattern, reply[:3])
