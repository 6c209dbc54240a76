"""Reason: one thought per hop, the next query, and the stop reasons of `ircot`."""

import pytest
from doubles import CORRANE, FERRY, LIGHT, FixedRetriever, FixedRouter, FreshRetriever, by_task, hit
from fake_openai import FakeOpenAI
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from hopgate import Context, build_graph
from hopgate.nodes import loop
from hopgate.nodes.prompts.evidence import unseen
from hopgate.nodes.reason import read_thought
from hopgate.nodes.run.state import add_evidence
from hopgate.retrievers.base import Hit

QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."


@pytest.mark.parametrize(
    ("thought", "final"),
    [
        ("The answer is Lissmere.", True),
        ("The answer is not given in the paragraphs.", False),
        ("So the answer is: not before 1858.", True),
        ("Corrane was born in Lissmere. So the answer is: Lissmere.", True),
        ("SO THE ANSWER IS 1858", True),
        (FACT, False),
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
        ([FACT, "Thus it is hers.", "Hence nothing.", "Therefore so."], FACT),
        ([FACT, "That is 1858 + 12 = 1870."], FACT),
        (["Mara Quell (1851 - 1902) lived here."], "Mara Quell (1851 - 1902) lived here."),
        ([FACT, "The war of 1914-1918 closed it."], "The war of 1914-1918 closed it."),
        ([FACT, "It stood for 1870 - 1858 = 12 years."], FACT),
        (["So what?", ""], QUESTION),
        ([FACT + " So the answer is: Corrane."], FACT),
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
        ("By Ilsabet Corrane, the Skerrane Light was designed!", True),
        ("Skerrane Light was designed.", False),
        ("Skerrane Light was designed by Ilsabet Corrane Corrane", False),
    ],
)
def test_repeated_queries_ignore_case_punctuation_and_order(query: str, repeated: bool) -> None:
    assert loop.is_repeated(query, [QUESTION, FACT]) is repeated


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


@pytest.mark.parametrize(
    ("thoughts", "found", "stop_reason", "hops"),
    [
        ([FACT, "So the answer is: Lissmere."], None, "answered", 2),
        ([FACT, "Corrane was born in Lissmere.", "Lissmere is a town."], None, "hop_limit", 3),
        ([FACT, FACT.upper()], None, "repeated_query", 2),
        (["So it goes."], None, "repeated_query", 1),
        ([FACT, ""], None, "no_thought", 2),
        ([FACT], [[LIGHT], [LIGHT]], "no_new_passage", 2),
        ([FACT], [[LIGHT, CORRANE], [FERRY]], "evidence_budget", 2),
    ],
)
async def test_ircot_records_why_it_stopped(
    thoughts: list[str], found: list[list[Hit]] | None, stop_reason: str, hops: int
) -> None:
    replies = map(AIMessage, [*thoughts, "Lissmere"])
    graph = build_graph(
        model=GenericFakeChatModel(messages=replies),  # LangChain's FAKE
        retriever=FixedRetriever(*found) if found else FreshRetriever(),
        router=FixedRouter("C"),
    )
    context = Context(strategy="multi", max_hops=3, max_passages=2 if found else 15)
    result = await graph.ainvoke({"question": QUESTION}, context=context)
    assert result["decision"]["stop_reason"] == stop_reason
    assert [hop["thought"] for hop in result["hops"]] == [*thoughts, ""][:hops]
    assert result["usage"]["llm_calls"] == len(thoughts) + 1  # and the answer
    assert result["answer"] == "Lissmere"
