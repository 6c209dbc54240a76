"""Reason: one thought per hop, the next query, and the stop reasons of `ircot`."""

from collections.abc import Iterator
from math import inf

import pytest
from doubles import (
    CORRANE,
    FERRY,
    LIGHT,
    FixedRetriever,
    FixedRouter,
    FreshRetriever,
    by_task,
    hit,
)
from fake_openai import FakeOpenAI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from hopgate import Context, build_graph
from hopgate.nodes import loop
from hopgate.nodes.prompts.evidence import fit_budget, unseen
from hopgate.nodes.reason import read_thought
from hopgate.nodes.run.state import add_evidence
from hopgate.retrievers.base import Hit

QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."


@pytest.mark.parametrize(
    ("thought", "final"),
    [
        ("So the answer is: Lissmere.", True),
        ("The answer is Lissmere.", True),
        ("No answer is given in the paragraphs.", False),
        ("The answer is not given in the paragraphs.", False),
        ("So the answer is: not before 1858.", True),
        ("Corrane was born in Lissmere. So the answer is: Lissmere.", True),
        ("SO THE ANSWER IS 1858", True),
        (FACT, False),
        ("The answering machine is old.", False),
        ("", False),
    ],
)
def test_a_thought_that_states_the_answer_is_final(thought: str, final: bool) -> None:
    assert loop.is_final(thought) is final


@pytest.mark.parametrize(
    ("thoughts", "query"),
    [
        ([], QUESTION),
        ([FACT], FACT),
        ([FACT, "Corrane was born in Lissmere."], "Corrane was born in Lissmere."),
        ([FACT, "So she drew it."], FACT),
        ([FACT, "Thus it is hers.", "Hence nothing.", "Therefore so."], FACT),
        ([FACT, "That is 1858 + 12 = 1870."], FACT),
        (["Mara Quell (1851 - 1902) lived here."], "Mara Quell (1851 - 1902) lived here."),
        ([FACT, "The war of 1914-1918 closed it."], "The war of 1914-1918 closed it."),
        ([FACT, "It stood for 1870 - 1858 = 12 years."], FACT),
        (["So what?", ""], QUESTION),
        ([FACT + " So the answer is: Corrane."], FACT),
        (["Society Hill is in Brissock."], "Society Hill is in Brissock."),
        (["He moved to the U.S. in 1901."], "He moved to the U.S. in 1901."),
    ],
)
def test_the_next_query_is_the_last_sentence_that_states_a_fact(
    thoughts: list[str], query: str
) -> None:
    assert loop.next_fact(QUESTION, thoughts) == query


@pytest.mark.parametrize(
    ("query", "repeated"),
    [
        (FACT, True),
        ("skerrane light was designed by ilsabet corrane", True),
        ("By Ilsabet Corrane, the Skerrane Light was designed!", True),
        ("Skerrane Light was designed.", False),
        ("Skerrane Light was designed by Ilsabet Corrane Corrane", False),
    ],
)
def test_repeated_queries_ignore_case_punctuation_and_order(query: str, repeated: bool) -> None:
    assert loop.is_repeated(query, [QUESTION, FACT]) is repeated


@given(st.text(), st.lists(st.text(), max_size=4))
def test_a_repeated_query_is_always_found(query: str, others: list[str]) -> None:
    assert loop.is_repeated(query, [*others, query])
    assert not loop.is_repeated(query, [])


@given(st.text(min_size=1), st.lists(st.text()))
def test_the_next_query_is_the_question_or_part_of_a_thought(
    question: str, thoughts: list[str]
) -> None:
    query = loop.next_fact(question, thoughts)
    assert query == question or any(query in thought for thought in thoughts)


@pytest.mark.parametrize(
    ("reply", "thought"),
    [
        (FACT, FACT),
        (f"{FACT} Corrane was born in Lissmere.", FACT),
        (f"{FACT} So the answer is: Corrane.", f"{FACT} So the answer is: Corrane."),
        (f"{FACT}\nQuestion: Who?\nAnswer: me", FACT),
        ("She moved to the U.S. in 1901. She died there.", "She moved to the U.S. in 1901."),
        ("", ""),
        (" \n" + "设计者是艾尔莎。" * 10_000, "设计者是艾尔莎。"),
    ],
)
def test_a_thought_is_one_sentence_plus_the_answer_if_stated(reply: str, thought: str) -> None:
    assert read_thought(reply) == thought


async def test_the_prompt_shows_passages_question_and_earlier_thoughts(fake: FakeOpenAI) -> None:
    thoughts = ["One fact.", "Another.", "So the answer is: Lissmere."]
    fake.answers(by_task(reason=list(thoughts), answer="Lissmere"))
    graph = build_graph(retriever=FixedRetriever([CORRANE], [LIGHT], [FERRY]))
    await graph.ainvoke({"question": QUESTION}, context=Context(strategy="multi"))
    prompt = fake.prompts[2]
    assert f"[2] Skerrane Light\n{LIGHT['text']}\n\n[3] Ilsabet Corrane" in prompt
    assert f"Question: {QUESTION}\nReasoning: One fact. Another." in prompt


HITS = st.lists(st.sampled_from([LIGHT, CORRANE, FERRY, hit("Skerrane Light", LIGHT["text"])]))


@given(HITS, HITS, st.integers(1, 5))
def test_new_passages_go_first_without_duplicates_within_the_budget(
    old: list[Hit], new: list[Hit], limit: int
) -> None:
    evidence = fit_budget(unseen([], old), [], limit, inf)
    merged = add_evidence(evidence, fit_budget(unseen(evidence, new), evidence, limit, inf))
    ids = [each["id"] for each in merged]
    assert merged[len(merged) - len(evidence) :] == evidence
    assert len(ids) == len(set(ids)) <= limit
    assert set(ids) <= {each["id"] for each in old + new}


@given(HITS, HITS)
def test_adding_evidence_twice_equals_adding_it_once(old: list[Hit], new: list[Hit]) -> None:
    once = add_evidence(add_evidence([], old), new)
    assert add_evidence(once, new) == once
    assert add_evidence(add_evidence([], old), once) == once


def test_a_passage_with_a_known_id_replaces_the_old_one() -> None:
    edited = Hit(**{**LIGHT, "text": "Skerrane Light was lit in 1901."})
    assert add_evidence([CORRANE, LIGHT], [edited, FERRY]) == [FERRY, CORRANE, edited]


def test_the_same_passage_under_another_id_is_not_new() -> None:
    assert unseen([LIGHT], [Hit(**{**LIGHT, "id": "other"})]) == []


def model_with(thoughts: Iterator[str]) -> GenericFakeChatModel:
    """Return LangChain's FAKE chat model with these replies, one for each call."""
    return GenericFakeChatModel(messages=map(AIMessage, thoughts))


WORDS = st.sampled_from(
    [FACT, QUESTION, "", "So it goes.", "So the answer is: x.", "Lissmere is a town.", "1 + 1 = 2"]
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.one_of(WORDS, st.text(max_size=30)), min_size=12, max_size=12), st.integers(1, 5)
)
async def test_the_loop_ends_within_max_hops_with_any_thoughts(
    thoughts: list[str], max_hops: int
) -> None:
    retriever = FreshRetriever()
    graph = build_graph(
        model=model_with(iter(thoughts)), retriever=retriever, router=FixedRouter("C")
    )
    context = Context(strategy="multi", max_hops=max_hops, max_passages=50)
    result = await graph.ainvoke({"question": QUESTION}, context=context)
    assert 1 <= len(result["hops"]) == len(retriever.queries) <= max_hops
    assert result["usage"]["retrieval_steps"] == len(result["hops"])
    assert result["decision"]["stop_reason"] in (
        "answered",
        "hop_limit",
        "repeated_query",
        "no_thought",
    )


@pytest.mark.parametrize(
    ("thoughts", "stop_reason", "hops"),
    [
        (["So the answer is: Lissmere."], "answered", 1),
        ([FACT, "So the answer is: Lissmere."], "answered", 2),
        ([FACT, "Corrane was born in Lissmere.", "Lissmere is a town."], "hop_limit", 3),
        ([QUESTION], "repeated_query", 1),
        ([FACT, FACT.upper()], "repeated_query", 2),
        (["So it goes."], "repeated_query", 1),
        ([""], "no_thought", 1),
        ([FACT, ""], "no_thought", 2),
    ],
)
async def test_ircot_records_why_it_stopped(
    thoughts: list[str], stop_reason: str, hops: int
) -> None:
    graph = build_graph(
        model=model_with(iter([*thoughts, "Lissmere"])),
        retriever=FreshRetriever(),
        router=FixedRouter("C"),
    )
    context = Context(strategy="multi", max_hops=3)
    result = await graph.ainvoke({"question": QUESTION}, context=context)
    assert result["decision"]["stop_reason"] == stop_reason
    assert [hop["thought"] for hop in result["hops"]] == thoughts[:hops]
    assert result["usage"]["llm_calls"] == hops + 1  # and the answer
    assert result["answer"] == "Lissmere"


@pytest.mark.parametrize(
    ("found", "settings_", "stop_reason", "hops"),
    [
        ([[LIGHT], [LIGHT]], {}, "no_new_passage", 2),
        ([[]], {}, "no_new_passage", 1),
        ([[LIGHT], []], {}, "no_new_passage", 2),
        ([[LIGHT, CORRANE], [FERRY]], {"max_passages": 2}, "evidence_budget", 2),
    ],
)
async def test_the_loop_stops_without_new_evidence(
    found: list[list[Hit]], settings_: dict[str, int], stop_reason: str, hops: int
) -> None:
    retriever = FixedRetriever(*found)
    graph = build_graph(
        model=model_with(iter([FACT] * (hops - 1) + ["Lissmere"])),
        retriever=retriever,
        router=FixedRouter("C"),
    )
    context = Context(strategy="multi", **settings_)  # type: ignore[arg-type]
    result = await graph.ainvoke({"question": QUESTION}, context=context)
    assert result["decision"]["stop_reason"] == stop_reason
    assert len(result["hops"]) == len(retriever.queries) == hops


async def test_each_hop_searches_for_the_last_thought() -> None:
    retriever = FixedRetriever([LIGHT], [CORRANE])
    graph = build_graph(
        model=model_with(iter([FACT, "So the answer is: Lissmere.", "Lissmere [1]"])),
        retriever=retriever,
        router=FixedRouter("C"),
    )
    result = await graph.ainvoke({"question": QUESTION}, context=Context(strategy="multi"))
    assert retriever.queries == [QUESTION, FACT]
    assert [hop["passage_ids"] for hop in result["hops"]] == [[LIGHT["id"]], [CORRANE["id"]]]
    assert [each["title"] for each in result["citations"]] == ["Ilsabet Corrane"]
