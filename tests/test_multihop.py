"""The loop: both modes, their stop reasons, and that they always stop."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from doubles import (
    CORRANE,
    FERRY,
    LIGHT,
    BreakingRetriever,
    Clock,
    FixedRetriever,
    FixedRouter,
    FreshRetriever,
    TalkingModel,
    by_task,
    hit,
)
from fake_openai import FakeOpenAI, Reply
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from hopgate import Context, build_graph
from hopgate.common.words import sentences
from hopgate.models.chat import CHARS_PER_TOKEN, ModelError
from hopgate.nodes import decompose, loop, reason
from hopgate.nodes.prompts import evidence
from hopgate.nodes.run.state import add_evidence
from hopgate.retrievers.base import Hit

QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."
SUB_QUESTIONS = "1. Who designed Skerrane Light?\n2. Where was {1} born?"
SPLIT: dict[str, Any] = {
    "decompose": SUB_QUESTIONS,
    "sub_answer": ["Ilsabet Corrane", "Lissmere"],
    "answer": "Lissmere [1]",
}
THREAD: Any = {"configurable": {"thread_id": "1"}}
KEYS = ["answer", "decision", "hops", "usage", "evidence", "sub_questions"]


async def run(model: Any, retriever: Any, clock: Any = None, **settings_: Any) -> dict[str, Any]:
    graph = build_graph(model=model, retriever=retriever, router=FixedRouter("C"), clock=clock)
    context = Context(strategy="multi", **settings_)
    result = await graph.ainvoke({"question": QUESTION}, context=context, output_keys=KEYS)
    assert isinstance(result, dict)
    return result


# Sentences


@pytest.mark.parametrize(
    "sentence",
    [
        "Chanel No. 5 was made in 1921.",
        "Dr. Smith met J. R. R. Tolkien on Jan. 3.",
        "The U.S. Navy bought it at 5 p.m. from St. Louis.",
    ],
)
def test_abbreviations_and_decimals_do_not_end_a_sentence(sentence: str) -> None:
    assert sentences(f"{sentence} She died there.") == [sentence, "She died there."]


# Reading sub-questions


@pytest.mark.parametrize(
    "reply",
    [
        SUB_QUESTIONS,
        "- Who designed Skerrane Light?\n- Where was {1} born?",
        "Sub-question 1: Who designed Skerrane Light?\nSub-question 2: Where was {1} born?",
        "Who designed Skerrane Light?\nWhere was {1} born?",
        "1. Who designed Skerrane Light? 2. Where was {1} born?",
        "Who designed Skerrane Light? Where was {1} born?",
        "1. Who designed Skerrane Light?\n2. WHO designed Skerrane Light\n3. Where was {2} born?",
    ],
)
def test_sub_questions_are_read_from_any_list_format(reply: str) -> None:
    assert decompose.read_sub_questions(reply, 4) == [
        "Who designed Skerrane Light?",
        "Where was {1} born?",
    ]


@pytest.mark.parametrize(
    "reply",
    ["", "I cannot split this.", "word " * 10_000, "[" * 50_000 + "]", "[1, null, {}]", "1. \n2. "],
)
def test_a_reply_without_sub_questions_gives_an_empty_list(reply: str) -> None:
    assert decompose.read_sub_questions(reply, 4) == []


def test_sub_questions_in_other_languages_are_read() -> None:
    assert decompose.read_sub_questions("谁设计了灯塔？{1}出生在哪里？", 4) == [
        "谁设计了灯塔？",
        "{1}出生在哪里？",
    ]
    assert decompose.read_sub_questions("1. Найди автора книги\n2. Где родился {1}", 4) == [
        "Найди автора книги",
        "Где родился {1}",
    ]


@given(st.text(), st.integers(1, 10))
def test_sub_questions_are_single_lines_within_the_limit(reply: str, limit: int) -> None:
    found = decompose.read_sub_questions(reply, limit)
    assert len(found) <= limit
    assert all(0 < len(each) <= decompose.MAX_SUB_QUESTION_CHARS for each in found)
    assert not any(len(each.splitlines()) > 1 for each in found)


@pytest.mark.parametrize(
    ("sub_questions", "answers", "query"),
    [
        (["Who?", "Where was {1} born?"], ["Corrane"], "Where was Corrane born?"),
        (["a?", "b {1}?", "c {1} {2}?"], ["x", "y"], "c x y?"),
        (["a?", "b {1}?", "c {1} {2}?"], ["{2}", "{1}"], "c {2} {1}?"),
        (["a?", r"b {1}?"], [r"\1 \g<0>"], r"b \1 \g<0>?"),
        (["What is {1}?"], [], "What is {1}?"),
    ],
)
def test_an_answer_is_filled_in_once_and_never_expanded(
    sub_questions: list[str], answers: list[str], query: str
) -> None:
    assert loop.filled(sub_questions, answers) == query


# Decompose


@pytest.mark.parametrize("layout", ["inline", "turns"])
async def test_each_hop_searches_and_answers_one_sub_question(
    fake: FakeOpenAI, layout: str
) -> None:
    fake.answers(by_task(**SPLIT))
    retriever = FixedRetriever([LIGHT], [CORRANE])
    result = await run(None, retriever, multihop="decompose", layout=layout)
    assert result["sub_questions"] == ["Who designed Skerrane Light?", "Where was {1} born?"]
    assert retriever.queries == ["Who designed Skerrane Light?", "Where was Ilsabet Corrane born?"]
    assert [hop["thought"] for hop in result["hops"]] == ["Ilsabet Corrane", "Lissmere"]
    assert result["decision"]["stop_reason"] == "answered"
    assert result["answer"] == "Lissmere [1]"
    assert result["usage"]["llm_calls"] == len(fake.requests) == 4
    sub_answer = fake.requests[2]["messages"][-1]["content"]
    assert CORRANE["text"] in sub_answer  # only the passages of its own hop
    assert LIGHT["text"] not in sub_answer
    answer = fake.requests[3]["messages"][-1]["content"]
    assert CORRANE["text"] in answer
    assert LIGHT["text"] in answer
    assert QUESTION in answer


async def test_without_sub_questions_the_question_itself_is_searched(fake: FakeOpenAI) -> None:
    fake.answers(by_task(decompose="No idea.", sub_answer="Lissmere", answer="Lissmere"))
    result = await run(None, FreshRetriever(), multihop="decompose")
    assert result["sub_questions"] == [hop["query"] for hop in result["hops"]] == [QUESTION]


async def test_the_number_of_sub_questions_is_limited(fake: FakeOpenAI) -> None:
    many = "\n".join(f"{i}. What is thing {i}?" for i in range(1, 9))
    fake.answers(by_task(decompose=many, sub_answer="x", answer="y"))
    result = await run(None, FreshRetriever(), multihop="decompose", max_sub_questions=3)
    assert "at most 3 simpler questions" in fake.prompts[0]
    assert len(result["sub_questions"]) == len(result["hops"]) == 3


async def test_a_sub_question_may_use_passages_of_an_earlier_hop(fake: FakeOpenAI) -> None:
    fake.answers(by_task(**SPLIT))
    result = await run(None, FixedRetriever([LIGHT, CORRANE]), multihop="decompose")
    assert result["decision"]["stop_reason"] == "answered"
    assert len(result["hops"]) == 2


async def test_an_unknown_sub_answer_that_nothing_needs_stops_nothing(fake: FakeOpenAI) -> None:
    independent = "1. How long is the Danube?\n2. How long is the Elbe?"
    fake.answers(
        by_task(decompose=independent, sub_answer=["I don't know", "1,094 km"], answer="x")
    )
    result = await run(None, FreshRetriever(), multihop="decompose")
    assert [hop["thought"] for hop in result["hops"]] == ["", "1,094 km"]
    assert result["decision"]["stop_reason"] == "answered"


async def test_sub_questions_set_by_hand_are_followed(fake: FakeOpenAI) -> None:
    fake.answers(by_task(**SPLIT))
    retriever = FixedRetriever([LIGHT], [CORRANE])
    graph = build_graph(InMemorySaver(), router=FixedRouter("C"), retriever=retriever)
    context = Context(strategy="multi", multihop="decompose")
    await graph.ainvoke({"question": QUESTION}, THREAD, context=context, interrupt_after=["route"])
    await graph.aupdate_state(THREAD, {"sub_questions": ["Who drew it?", "Is {1} alive?"]})
    await graph.ainvoke(None, THREAD, context=context)
    assert retriever.queries == ["Who drew it?", "Is Ilsabet Corrane alive?"]


@pytest.mark.parametrize("down", ["decompose", "sub_answer", "answer"])
async def test_a_failure_repeats_no_finished_node(fake: FakeOpenAI, down: str) -> None:
    retriever = FixedRetriever([LIGHT], [CORRANE])
    graph = build_graph(InMemorySaver(), router=FixedRouter("C"), retriever=retriever)
    context = Context(strategy="multi", multihop="decompose")
    fake.answers(by_task(**{**SPLIT, down: Reply(status=401)}))
    with pytest.raises(ModelError):
        await graph.ainvoke({"question": QUESTION}, THREAD, context=context)
    done = len(fake.requests) - 1
    replies = {**SPLIT}
    if down == "answer":
        replies["sub_answer"] = []
    fake.answers(by_task(**replies))
    result = await graph.ainvoke(None, THREAD)  # the state holds the mode, not the context
    assert result["answer"] == "Lissmere [1]"
    assert retriever.queries == ["Who designed Skerrane Light?", "Where was Ilsabet Corrane born?"]
    assert len(fake.requests) == 5  # four calls, one of them twice
    assert result["usage"]["llm_calls"] == 4  # of those nodes that finished
    assert done == {"decompose": 0, "sub_answer": 1, "answer": 3}[down]


# Stop reasons


@pytest.mark.parametrize(
    ("sub_questions", "answers", "found", "settings_", "stop_reason", "hops"),
    [
        (SUB_QUESTIONS, ["Ilsabet Corrane"], [[LIGHT], [CORRANE]], {"max_hops": 1}, "hop_limit", 1),
        ("1. Who is x?\n2. Who is {1}?", ["X!"], [[LIGHT], [CORRANE]], {}, "repeated_query", 1),
        (SUB_QUESTIONS, ["x"], [[LIGHT], []], {}, "no_new_passage", 2),
        (SUB_QUESTIONS, ["x"], [[LIGHT], [CORRANE]], {"max_passages": 1}, "evidence_budget", 2),
        (SUB_QUESTIONS, ["I don't know"], [[LIGHT]], {}, "no_thought", 1),
        (SUB_QUESTIONS, ["x", "I don't know."], [[LIGHT], [CORRANE]], {}, "no_thought", 2),
    ],
)
async def test_decompose_records_why_it_stopped(
    fake: FakeOpenAI,
    sub_questions: str,
    answers: list[str],
    found: list[list[Hit]],
    settings_: dict[str, Any],
    stop_reason: str,
    hops: int,
) -> None:
    fake.answers(by_task(decompose=sub_questions, sub_answer=answers, answer="x", direct="x"))
    result = await run(None, FixedRetriever(*found), multihop="decompose", **settings_)
    assert result["decision"]["stop_reason"] == stop_reason
    assert len(result["hops"]) == hops


async def test_finding_only_known_passages_is_not_a_full_budget() -> None:
    model = TalkingModel(say=lambda n, _: f"{FACT[:-1]} {n}.")
    result = await run(model, FixedRetriever([LIGHT]), max_passages=1)
    assert result["decision"]["stop_reason"] == "no_new_passage"


@pytest.mark.parametrize(
    ("max_seconds", "mode", "hops", "thoughts"),
    [
        (13, "ircot", 1, 1),  # the loop has three quarters of it
        (21, "ircot", 2, 2),
        (None, "ircot", 4, 4),
        (13, "decompose", 0, 0),
        (21, "decompose", 1, 1),
    ],
)
async def test_the_deadline_is_checked_before_each_call(
    max_seconds: float | None, mode: str, hops: int, thoughts: int
) -> None:
    clock = Clock()

    def say(number: int, prompt: str) -> str:
        clock.advance(10)
        return SUB_QUESTIONS if "Split the question" in prompt else f"Fact {number}."

    model = TalkingModel(say=say)
    result = await run(model, FreshRetriever(), clock, max_seconds=max_seconds, multihop=mode)
    expected = "hop_limit" if max_seconds is None else "deadline"
    assert result["decision"]["stop_reason"] == expected
    assert len(result["hops"]) == hops
    assert sum(bool(hop["thought"]) for hop in result["hops"]) == thoughts
    assert any("max_seconds" in each for each in result["decision"]["warnings"]) == bool(
        max_seconds
    )
    assert result["answer"]


async def test_a_pause_does_not_count_towards_the_deadline() -> None:
    clock = Clock()
    graph = build_graph(
        InMemorySaver(),
        model=TalkingModel(say=lambda *_: "x"),
        retriever=(retriever := FreshRetriever()),
        router=FixedRouter("C"),
        clock=clock,
    )
    context = Context(strategy="multi", max_seconds=5)
    await graph.ainvoke({"question": QUESTION}, THREAD, context=context, interrupt_after=["route"])
    clock.advance(1_000)
    result = await graph.ainvoke(None, THREAD, context=context)
    assert retriever.queries
    assert result["decision"]["stop_reason"] != "deadline"


# Edits by hand before the loop starts


def hop(query: str, thought: str) -> dict[str, Any]:
    return {"query": query, "passage_ids": [], "thought": thought}


async def run_edited(state: dict[str, Any], **settings_: Any) -> tuple[dict[str, Any], list[str]]:
    """Edit the state right before the loop, resume, and return the final state and the queries."""
    retriever = FreshRetriever()
    graph = build_graph(
        InMemorySaver(),
        model=TalkingModel(say=lambda n, _: f"Fact {n} is new."),
        retriever=retriever,
        router=FixedRouter("C"),
    )
    context = Context(strategy="multi", **settings_)
    await graph.ainvoke({"question": QUESTION}, THREAD, context=context, interrupt_after=["route"])
    await graph.aupdate_state(THREAD, state)
    await graph.ainvoke(None, THREAD, context=context)
    return (await graph.aget_state(THREAD)).values, retriever.queries


TWO = [hop(QUESTION, FACT), hop(FACT, "Corrane was born in Lissmere.")]


@pytest.mark.parametrize(
    ("state", "settings_", "stop_reason"),
    [
        ({"hops": TWO, "sub_questions": ["Who?"]}, {}, "answered"),
        ({"hops": TWO, "sub_questions": ["Who?", "Where?"]}, {"multihop": "decompose"}, "answered"),
        ({"hops": [*TWO[:1], hop(FACT, "")], "sub_questions": ["Who?"]}, {}, "no_thought"),
        ({"hops": TWO}, {"max_hops": 2}, "hop_limit"),
        ({"hops": TWO, "next_query": QUESTION}, {}, "repeated_query"),
        ({"hops": TWO, "next_query": FACT.upper()}, {}, "repeated_query"),
        ({"hops": [hop(QUESTION, "So it goes.")]}, {}, "repeated_query"),
    ],
)
async def test_the_loop_stops_at_once_if_the_hops_leave_nothing_to_search(
    state: dict[str, Any], settings_: dict[str, Any], stop_reason: str
) -> None:
    after, searched = await run_edited(state, **settings_)
    assert searched == []
    assert after["decision"]["stop_reason"] == stop_reason
    assert after["hops"] == state["hops"]
    assert after["next_query"] == ""
    assert after["answer"]


async def test_hops_without_sub_questions_continue_as_ircot_in_either_mode() -> None:
    after, searched = await run_edited({"hops": TWO}, max_hops=3, multihop="decompose")
    assert searched == ["Corrane was born in Lissmere."]
    assert after["sub_questions"] == []


async def test_a_new_loop_ignores_an_earlier_stop_reason() -> None:
    after, searched = await run_edited(
        {"decision": {"stop_reason": "answered"}}, multihop="decompose", max_sub_questions=1
    )
    assert searched == [QUESTION]
    assert after["decision"]["stop_reason"] == "answered"


# The evidence budget


async def test_a_tight_budget_ends_the_loop() -> None:
    model = TalkingModel(say=lambda n, _: f"Fact {n}.")
    result = await run(
        model, FreshRetriever("x" * 93), max_evidence_tokens=200, hop_k=1, max_hops=10
    )
    assert len(result["evidence"]) == 8  # of 100 bytes; a token has four
    assert result["decision"]["stop_reason"] == "evidence_budget"


async def test_passages_are_cut_to_passage_chars() -> None:
    model = TalkingModel(say=lambda *_: "So the answer is: x.")
    result = await run(model, FreshRetriever("y" * 50_000), passage_chars=321)
    assert [len(each["text"]) for each in result["evidence"]] == [321] * 3


HITS = st.lists(st.builds(hit, st.text(max_size=300), st.text(max_size=300)), max_size=6)


@given(HITS, HITS, st.integers(1, 8), st.integers(200, 2_000))
def test_evidence_fits_the_budget(
    old: list[Hit], new: list[Hit], passages: int, max_bytes: int
) -> None:
    known = evidence.fit_budget(evidence.unseen([], old), [], passages, max_bytes)
    unseen = evidence.unseen(known, new)
    merged = add_evidence(known, evidence.fit_budget(unseen, known, passages, max_bytes))
    assert evidence.byte_size(merged) <= max_bytes or len(merged) == 1
    assert len(merged) == len({each["id"] for each in merged}) <= passages
    assert merged[len(merged) - len(known) :] == known


# Termination


class GreedyRetriever(FixedRetriever):
    """A retriever that returns all its passages, whatever `k` is."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return super().search(queries, 1_000)


FOREIGN = [
    "灯塔由伊尔莎设计。",
    "صممت إلسا المنارة.",
    "मीनार इल्सा ने बनाई।",
    "Маяк построила Ильза.",
]
Say = Callable[[int, str], str]
MODELS: dict[str, Say] = {
    "loops": lambda n, _: FACT,
    "echoes the prompt": lambda n, prompt: prompt,
    "repeats two facts": lambda n, _: [FACT, "Corrane was born in Lissmere."][n % 2],
    "stays silent": lambda n, _: "",
    "answers at once": lambda n, _: "So the answer is: Lissmere.",
    "never runs out of facts": lambda n, _: f"Town {n} lies near town {n + 1}.",
    "writes 10,000 words": lambda n, _: f"word{n} " * 10_000,
    "writes 10,000 sentences": lambda n, _: f"Fact {n}. " * 10_000,
    "writes 10,000 sub-questions": lambda n, _: "\n".join(
        f"{i}. What is {{{i}}} {n}?" for i in range(10_000)
    ),
    "writes in other languages": lambda n, _: FOREIGN[n % 4],
    "repeats the sub-questions": lambda n, _: SUB_QUESTIONS,
    "refers to itself": lambda n, _: "1. {1}{2}?\n2. {2}{1}?\n3. {3}?",
    "does not know": lambda n, _: "I don't know.",
}
RETRIEVERS: dict[str, Callable[[], FixedRetriever]] = {
    "the same": lambda: FixedRetriever([LIGHT, CORRANE, FERRY]),
    "nothing": lambda: FixedRetriever([]),
    "new ones forever": FreshRetriever,
    "more than k": lambda: GreedyRetriever([hit(f"Page {i}", "Some text.") for i in range(200)]),
    "twins": lambda: FixedRetriever([LIGHT, LIGHT, Hit(**{**LIGHT, "id": "other"})], [CORRANE] * 3),
    "one id, two texts": lambda: FixedRetriever([LIGHT], [Hit(**{**CORRANE, "id": LIGHT["id"]})]),
    "down at once": lambda: BreakingRetriever([]),
    "50,000 characters": lambda: FreshRetriever("x y. " * 10_000),
    "empty texts": lambda: FreshRetriever(""),
    "half characters": lambda: FixedRetriever(
        [Hit(id="1\udc00", title="a \ud800", text="b \udfff", score=0.5)]
    ),
}
MODEL = st.one_of(
    st.sampled_from(list(MODELS.values())),
    st.lists(st.text(max_size=60), min_size=1, max_size=8).map(
        lambda replies: lambda n, _: replies[n % len(replies)]
    ),
    st.lists(st.sampled_from(list(MODELS.values())), min_size=2, max_size=4).map(
        lambda each: lambda n, prompt: each[n % len(each)](n, prompt)
    ),
)
SETTINGS = st.fixed_dictionaries(
    {
        "multihop": st.sampled_from(["ircot", "decompose"]),
        "layout": st.sampled_from(["inline", "turns"]),
        "max_hops": st.integers(1, 10),
        "max_sub_questions": st.integers(1, 10),
        "max_passages": st.integers(1, 20),
        "hop_k": st.integers(1, 5),
        "passage_chars": st.integers(100, 3_000),
        "max_evidence_tokens": st.one_of(st.none(), st.integers(200, 3_000)),
        "max_seconds": st.sampled_from([None, 13, 26, 41]),  # a call takes 10: never the last one
        "max_calls": st.sampled_from([2, 3, 50]),
    }
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MODEL, st.sampled_from(list(RETRIEVERS.values())), SETTINGS)
async def test_the_loop_ends_with_any_model_and_retriever(
    say: Say, make: Callable[[], FixedRetriever], chosen: dict[str, Any]
) -> None:
    clock = Clock()

    def say_slowly(number: int, prompt: str) -> str:
        clock.advance(10)
        return say(number, prompt)

    model, retriever = TalkingModel(say=say_slowly), make()
    result = await run(model, retriever, clock, **chosen)
    check(result, model, retriever, Context(strategy="multi", **chosen))


@pytest.mark.parametrize("say", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("mode", ["ircot", "decompose"])
async def test_the_loop_ends_with_each_model_and_endless_passages(say: Say, mode: str) -> None:
    model, retriever = TalkingModel(say=say), FreshRetriever()
    settings_: dict[str, Any] = {"multihop": mode, "max_hops": 10, "max_sub_questions": 10}
    result = await run(model, retriever, **settings_)
    check(result, model, retriever, Context(strategy="multi", **settings_))


def check(
    result: dict[str, Any], model: TalkingModel, retriever: FixedRetriever, context: Context
) -> None:
    """Check a finished run against every guarantee."""
    hops, found, sub_questions = result["hops"], result["evidence"], result["sub_questions"]
    assert result["answer"].strip()
    short = result["decision"]["stop_reason"] in ("deadline", "budget")
    assert (0 if short else 1) <= len(hops) == len(retriever.queries) <= context.max_hops
    calls = result["usage"]["llm_calls"]
    split = context.multihop == "decompose"
    assert len(model.prompts) == calls <= len(hops) + 1 + split
    assert calls <= (context.max_calls or math.inf)
    assert bool(sub_questions) == split
    assert len(sub_questions) <= context.max_sub_questions
    assert all(len(hop["passage_ids"]) <= context.hop_k for hop in hops)
    assert json.dumps(result, allow_nan=False, ensure_ascii=False).encode()  # can be stored
    assert all(hop["query"].strip() and len(hop["query"]) < 3_000 for hop in hops)
    assert all(len(hop["thought"]) <= reason.MAX_THOUGHT_CHARS for hop in hops)
    ids = [each["id"] for each in found]
    assert len(ids) == len(set(ids)) <= context.max_passages
    assert all(len(each["text"]) <= context.passage_chars for each in found)
    tokens = evidence.byte_size(found) / CHARS_PER_TOKEN
    assert tokens <= (context.max_evidence_tokens or 12_000) or len(found) == 1


async def test_ten_hops_fit_the_recursion_limit() -> None:
    model = TalkingModel(say=MODELS["never runs out of facts"])
    graph = build_graph(model=model, retriever=FreshRetriever(), router=FixedRouter("C"))
    context = Context(strategy="multi", max_hops=10, max_passages=50)
    result = await graph.ainvoke({"question": QUESTION}, {"recursion_limit": 25}, context=context)
    assert len(result["hops"]) == 10
    assert result["decision"]["stop_reason"] == "hop_limit"
