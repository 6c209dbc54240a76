"""Answers in any language are traced to the passages that hold their words."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from doubles import FixedRetriever
from fake_openai import FakeOpenAI

from hopgate import Context, build_graph
from hopgate.common.words import spaced, words
from hopgate.nodes.loop import is_repeated
from hopgate.nodes.sub_answer import read_sub_answer
from hopgate.nodes.texts.support import support
from hopgate.retrievers.base import Hit

UNSUPPORTED = {
    "short": "no retrieved passage supports the answer",
    "full": "the answer cites no passage, and none holds its words",
}


class Case(NamedTuple):
    """A question, the sentence that answers it, a longer reply, and one that is wrong."""

    question: str
    sentence: str
    other: str
    reply: str
    wrong: str


FILE = Path(__file__).parent / "data/languages.json"
CASES = {name: Case(**case) for name, case in json.loads(FILE.read_text("utf-8")).items()}


def passages(language: str) -> list[Hit]:
    case = CASES[language]
    text = f"{case.sentence} {case.other}"
    unrelated = [Hit(id="2", title="", text=case.other, score=0.5)]
    return [Hit(id="1", title="", text=text, score=1.0), *unrelated]


in_both = pytest.mark.parametrize("answers", ["short", "full"])


async def ask(fake: FakeOpenAI, language: str, reply: str, answers: Any = "full") -> Any:
    fake.says(reply)
    graph = build_graph(retriever=FixedRetriever(passages(language)))
    context = Context(strategy="single", model="openai:fake", answers=answers)
    return await graph.ainvoke({"question": CASES[language].question}, context=context)


@pytest.mark.parametrize("language", CASES)
async def test_an_answer_without_markers_finds_its_passage(fake: FakeOpenAI, language: str) -> None:
    case = CASES[language]
    result = await ask(fake, language, case.reply)
    assert [each["id"] for each in result["citations"]] == ["1"]
    assert result["citations"][0]["quote"].startswith(case.sentence)
    assert result["decision"].get("warnings", []) == []


@in_both
@pytest.mark.parametrize("language", CASES)
async def test_a_wrong_answer_adds_a_warning(fake: FakeOpenAI, language: str, answers: Any) -> None:
    result = await ask(fake, language, CASES[language].wrong, answers)
    assert result["citations"] == []
    assert result["decision"]["warnings"] == [UNSUPPORTED[answers]]


@in_both
@pytest.mark.parametrize("language", CASES)
async def test_a_marker_is_checked(fake: FakeOpenAI, language: str, answers: Any) -> None:
    result = await ask(fake, language, f"{CASES[language].reply} [1]", answers)
    assert [each["id"] for each in result["citations"]] == ["1"]
    assert result["decision"].get("warnings", []) == []
    result = await ask(fake, language, f"{CASES[language].wrong} [1]", answers)
    (warning,) = result["decision"]["warnings"]
    assert warning.startswith("[1] does not support ")


async def test_the_quote_is_the_chinese_sentence_with_the_year(fake: FakeOpenAI) -> None:
    result = await ask(fake, "zh", "1858年")
    assert result["citations"][0]["quote"] == CASES["zh"].other


@pytest.mark.parametrize("reply", ["是。", "Nein.", "Да!", "نعم", "はい。", "예."])
def test_a_bare_yes_or_no_has_nothing_to_trace(reply: str) -> None:
    assert support(reply, "", [reply]).words == frozenset()


def test_queries_in_chinese_are_compared_without_punctuation_and_width() -> None:
    assert is_repeated("谁在１８５８年设计了灯塔？", ["谁在1858年设计了灯塔"])
    assert not is_repeated("王明比李华高吗", ["李华比王明高吗"])


def test_unspaced_scripts_are_cut_into_overlapping_pieces() -> None:
    assert spaced("see iPhone是手机") == "see iPhone 是手 手机 "
    assert words("ＡＢＣ、中国人。ไปไหน") == ["ABC", "中国", "国人", "ไปไ", "ปไห", "ไหน"]
    assert words("中") == ["中"]


def test_a_chinese_sub_answer_loses_its_full_stop() -> None:
    assert read_sub_answer("王明远。他是建筑师。") == "王明远"
