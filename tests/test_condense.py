"""Condense: checking questions, and rewriting follow-ups as standalone questions."""

from dataclasses import replace

import pytest
from fake_openai import FakeOpenAI, Reply

from hopgate import Context
from hopgate.models import chat
from hopgate.models.chat import Layout
from hopgate.nodes.condense import rewrite
from hopgate.nodes.run.conversation import Exchange
from hopgate.nodes.run.runtime import NodeRuntime, Resources
from hopgate.nodes.texts.text import check_question

FOLLOW_UP = "And when was it first lit?"
STANDALONE = "When was Farrick Head Lighthouse first lit?"
HISTORY = [Exchange("Who designed Farrick Head Lighthouse?", "Caddoc Fairlow")]


@pytest.mark.parametrize(
    ("question", "wrong"),
    [("", "empty"), ("  \n\t", "empty"), (None, "empty"), (3, "3;"), (b"Why?", "b'Why")],
)
def test_a_question_must_be_a_non_empty_string(question: object, wrong: str) -> None:
    with pytest.raises(ValueError, match=f"the question is {wrong}"):
        check_question(question)


def test_the_error_for_a_long_question_names_both_lengths() -> None:
    with pytest.raises(ValueError, match="100000 characters; at most 4000 are allowed"):
        check_question("x" * 100_000)


async def rewrite_follow_up(
    fake: FakeOpenAI,
    reply: str | Reply,
    history: list[Exchange] = HISTORY,
    layout: Layout = "inline",
) -> str:
    fake.says(reply)
    return await rewrite(
        FOLLOW_UP, history, NodeRuntime(Context(model="openai:fake", layout=layout))
    )


@pytest.mark.parametrize("reply", [STANDALONE, f"Question: {STANDALONE}", f"  {STANDALONE}  "])
async def test_a_follow_up_is_replaced_by_the_models_rewrite(fake: FakeOpenAI, reply: str) -> None:
    assert await rewrite_follow_up(fake, reply) == STANDALONE
    assert len(fake.requests) == 1


@pytest.mark.parametrize("reply", ["", "Question:", "In 1874.", "x" * 5000 + "?"])
async def test_a_reply_that_is_not_a_question_is_ignored(fake: FakeOpenAI, reply: str) -> None:
    assert await rewrite_follow_up(fake, reply) == FOLLOW_UP


@pytest.mark.parametrize(
    ("follow_up", "reply", "standalone"),
    [
        (FOLLOW_UP, STANDALONE, STANDALONE),
        (FOLLOW_UP, FOLLOW_UP, f"{HISTORY[0].question} {FOLLOW_UP}"),
        (FOLLOW_UP, "When was the tower built?", f"{HISTORY[0].question} {FOLLOW_UP}"),
        ("What do bees make?", "What do bees make?", "What do bees make?"),
    ],
)
async def test_a_tiny_models_rewrite_must_name_what_the_follow_up_refers_to(
    fake: FakeOpenAI, follow_up: str, reply: str, standalone: str
) -> None:
    fake.says(reply)
    model = replace(await chat.load("openai:fake"), tiny=True)
    runtime = NodeRuntime(Context(layout="turns"), Resources(model=model))
    assert await rewrite(follow_up, HISTORY, runtime) == standalone


@pytest.mark.parametrize("layout", ["inline", "turns"])
async def test_the_latest_exchanges_are_shown_in_order(fake: FakeOpenAI, layout: Layout) -> None:
    history = [Exchange(f"Question {n}?", f"Answer {n}") for n in range(10)]
    await rewrite_follow_up(fake, STANDALONE, history, layout)
    shown = fake.requests[0]["messages"][-1]["content"]
    assert [n for n in range(10) if f"Question {n}?" in shown] == [7, 8, 9]
    assert shown.index("Answer 7") < shown.index("Answer 9") < shown.index(FOLLOW_UP)
