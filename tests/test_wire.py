"""Replies without end, from a fake endpoint over real HTTP: what is read of them, and parsed."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from doubles import TalkingModel
from fake_openai import COMPLETION_TOKENS, FakeOpenAI, Reply
from langchain_core.messages import AIMessage, HumanMessage

from hopgate.models import chat
from hopgate.models.chat import Completion, ModelError
from hopgate.nodes.answers.reading import read_answer, read_full_answer, settled
from hopgate.nodes.decompose import read_sub_questions
from hopgate.nodes.gate import parse, probability_of_yes, uncertainty
from hopgate.nodes.reason import read_thought
from hopgate.nodes.sub_answer import read_sub_answer
from hopgate.nodes.texts.message import decide, query
from hopgate.nodes.texts.support import support
from hopgate.nodes.texts.text import inert, keep_marks
from hopgate.retrievers.base import Hit

PROMPT = [HumanMessage("Say something.")]
MANY = 15_000_000  # bytes


async def complete(stream: bool = False, max_tokens: int = 100, **options: Any) -> Completion:
    """Ask the fake endpoint once."""
    model = await chat.load("openai:fake")
    streaming = replace(model, client=model.client.model_copy(update={"streaming": stream}))
    return await chat.complete(streaming, PROMPT, max_tokens=max_tokens, **options)


@asynccontextmanager
async def responsive(seconds: float = 2.0) -> AsyncIterator[None]:
    """Check that the event loop never works this long on one thing.

    Processor time, since a busy machine and the fake endpoint's threads make it wait.
    """
    gaps = []

    async def beat() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.005)
            now = time.thread_time()
            gaps.append(now - last)
            last = now

    heart = asyncio.create_task(beat())
    await asyncio.sleep(0.02)
    try:
        yield
        await asyncio.sleep(0.02)
    finally:
        heart.cancel()
    assert max(gaps) < seconds


def document(content: str = "Paris", **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}]}


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def event(content: str, **choice: Any) -> bytes:
    choices = [{"index": 0, "delta": {"content": content}, "finish_reason": None, **choice}]
    return f"data: {json.dumps({'id': 'x', 'choices': choices})}\n\n".encode()


DONE = event("", finish_reason="stop") + b"data: [DONE]\n\n"


def positions(count: int) -> dict[str, Any]:
    """Log-probabilities as an endpoint writes them, of tokens of six bytes."""
    top = {"token": "déjàx", "logprob": -12.345678710937, "bytes": list("déjà".encode())}
    return {"content": [{**top, "top_logprobs": [top] * chat.TOP_LOGPROBS}] * count}


# What is read


ENDLESS: dict[str, Callable[[], Reply]] = {
    "text": lambda: Reply("word " * (MANY // 5)),
    "spaces": lambda: Reply(body=b" " * MANY),
    "log-probabilities": lambda: Reply(body=encoded(document(logprobs=positions(9_000)))),
    "gzip": lambda: Reply(body=gzip.compress(encoded(document("a" * MANY))), encoding="gzip"),
    "a refusal": lambda: Reply(status=400, error="no " * (MANY // 3)),
    "no length": lambda: Reply(body=(b"a" * 1000 for _ in range(MANY // 1000))),
    "after gzip": lambda: Reply(body=gzip.compress(b"{}") + b"a" * MANY, encoding="gzip"),
    "gzip of nothing": lambda: Reply(body=empty_blocks(), encoding="gzip"),
}  # fmt: skip


def empty_blocks() -> bytes:
    """A gzip stream of many blocks that hold nothing."""
    head = gzip.compress(b"", mtime=0)[:10]
    return head + b"\0\0\0\xff\xff" * (MANY // 5)


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_reply_without_end_is_not_read_to_its_end(fake: FakeOpenAI, kind: str) -> None:
    fake.says(*[ENDLESS[kind]()] * 3)
    async with responsive():
        with pytest.raises(ModelError) as caught:
            await complete(logprobs=True)
    check_refusal(str(caught.value), fake)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_is_compressed_twice_is_not_read(fake: FakeOpenAI, stream: bool) -> None:
    """100 kB that decompress to 15 MB between the two, and then to nothing."""
    body = gzip.compress(gzip.compress(encoded(document())) + b"a" * MANY)
    fake.says(*[Reply(body=body, encoding="gzip, gzip")] * 3)
    async with responsive():
        with pytest.raises(ModelError, match="compressed 2 times, so it was not read"):
            await complete(stream)
    assert len(fake.requests) == 1


STREAMS: dict[str, Callable[[], Iterator[bytes]]] = {
    "many chunks": lambda: (event("word ") for _ in range(60_000)),
    "empty chunks": lambda: (b"data: {}\n\n" for _ in range(60_000)),
    "one line": lambda: iter([event("word " * (MANY // 5)), DONE]),
    "comments": lambda: iter([b": wait\n\n" * (MANY // 8), event("Paris"), DONE]),
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_a_stream_without_end_is_not_read_to_its_end(fake: FakeOpenAI, kind: str) -> None:
    fake.says(Reply(body=STREAMS[kind]()))
    async with responsive():
        with pytest.raises(ModelError) as caught:
            await complete(stream=True, logprobs=True)
    check_refusal(str(caught.value), fake)


def check_refusal(message: str, fake: FakeOpenAI) -> None:
    assert "far longer than 100 tokens" in message
    assert f"model openai:fake at {fake.base_url}" in message
    assert "obeys max_tokens" in message
    assert "\n" not in message and len(message) < 700
    assert len(fake.requests) == 1  # a retry would cost as much again


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [0, 2_000])
async def test_a_reply_of_full_length_is_read(
    fake: FakeOpenAI, stream: bool, thinking: int
) -> None:
    """The largest there are: a rare word for each token, with log-probabilities and filters."""
    (await chat.load("openai:fake")).learned.thinks = bool(thinking)
    tokens, filters = 100 + thinking, {f"kind {n}": {"filtered": False} for n in range(8)}
    words = ["word"] * 100
    if thinking:
        words = ["<think>", *["thought"] * (thinking - 2), "</think>", *words]
    one = positions(1)
    if stream:
        chunks = [event(f" {each}", logprobs=one, content_filter_results=filters) for each in words]
        fake.says(Reply(body=b"".join([*chunks, DONE])))
    else:
        full = document(" ".join(words), logprobs=positions(tokens), content_filter_results=filters)
        fake.says(Reply(body=json.dumps(full, indent=1).encode()))
    found = await complete(stream, logprobs=True)
    assert found.text == " ".join(["word"] * 100)
    assert len(found.logprobs) == len(words)


# What is parsed


async def test_a_reply_beyond_max_tokens_is_cut(fake: FakeOpenAI) -> None:
    fake.says(Reply("  " + "word " * 10_000))
    found = await complete(max_tokens=8)
    assert found.text == ("word " * 10_000)[: 8 * chat.MOST_CHARS_PER_TOKEN].strip()
    assert found.completion_tokens == COMPLETION_TOKENS  # what the endpoint counted


async def test_the_reply_of_another_provider_s_client_is_cut() -> None:
    own = chat.wrap(TalkingModel(say=lambda *_: "word " * 1_000_000))
    async with responsive():
        found = await chat.complete(own, PROMPT, max_tokens=100)
    assert len(found.text) <= 100 * chat.MOST_CHARS_PER_TOKEN


@pytest.mark.parametrize(
    "position", [{"token": "Yes"}, {"token": "Yes", "logprob": "x"}, "Yes", None]
)
async def test_malformed_log_probabilities_are_an_error_of_the_model(
    fake: FakeOpenAI, position: Any
) -> None:
    content = [{"token": "Yes", "logprob": -1.0, "top_logprobs": [position]}]
    fake.says(Reply(body=encoded(document(logprobs={"content": content}))))
    with pytest.raises(ModelError, match="did not answer"):
        await complete(logprobs=True)


async def test_a_log_probability_is_at_most_0(fake: FakeOpenAI) -> None:
    fake.says(Reply("Yes", logprobs=[{"Yes": 1e9, "No": float("nan")}]))
    found = await complete(logprobs=True)
    assert probability_of_yes(found) == 0.5
    assert 0 <= uncertainty(found) <= 1


LONG = 16_000  # characters
MODEL = chat.wrap(TalkingModel(say=lambda *_: ""))
HIT = Hit(id="1", title="Tower", text="The tower is 330 metres tall.", score=1.0)
READERS: dict[str, Callable[[str], object]] = {
    "_readable": lambda reply: chat._reply_text(MODEL, AIMessage(reply), 100_000),
    "parse": parse,
    "read_answer": lambda reply: read_answer(reply, []),
    "read_answer with evidence": lambda reply: read_answer(reply, [HIT], "How tall is it?"),
    "settled": lambda reply: settled(reply, 0, full=False),
    "settled in full": lambda reply: settled(reply, 3, full=True),
    "read_full_answer": lambda reply: read_full_answer(reply, [HIT], "How tall is it?"),
    "decide": lambda reply: decide(reply, [("human", "Hi"), ("ai", reply)], reply),
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
    """About 0.05 s each, up to 0.1 s; what grows with the square of the length takes minutes."""
    for pattern in PATTERNS:
        many = (pattern * LONG)[: LONG - 20]
        for reply in (many, f"a{many}", f"[{many}a"):
            started = time.process_time()
            READERS[reader](reply)
            assert time.process_time() - started < 2, (pattern, reply[:3])
