"""Generate: the papers' prompts, and citations checked against the passages shown."""

import time
from typing import Any

import pytest
from doubles import CORRANE, FERRY, LIGHT, FixedRetriever, FixedRouter, by_task, hit
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

from hopgate import Context, build_graph
from hopgate.common.words import sentences
from hopgate.models.chat import Layout
from hopgate.nodes.answers.reading import Answer, read_answer
from hopgate.nodes.texts.text import normalise, without_marks
from hopgate.retrievers.base import Hit

EVIDENCE = [LIGHT, CORRANE, FERRY]
QUESTION = "Who designed Skerrane Light?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."

# RetrievalQA, figures 7 and 8, verbatim; the sentence about citations is hopgate's.
FIGURE_7 = (
    "Please use your own knowledge to answer the questions. Only include the answer in your "
    'response and try to be concise. If you do not know the answer, just say "I don\'t know".\n\n'
    f"Question: {QUESTION}\nAnswer:"
)
FIGURE_8 = (
    "Please answer the question based on the provided context. Only include the answer in your "
    'response and try to be concise. If you do not know the answer, just say "I don\'t know".'
)
DOCUMENTS = (
    "\n\nParagraph:\n"
    "[1] Skerrane Light\n"
    "Skerrane Light was designed by Ilsabet Corrane. It was lit in 1858.\n\n"
    "[2] Ilsabet Corrane\n"
    "Ilsabet Corrane was born in Lissmere. She drew lighthouses.\n\n"
    f"Question: {QUESTION}\nAnswer:"
)


async def run(fake: FakeOpenAI, found: list[Hit] | None = None, layout: Layout = "inline") -> Any:
    """Give a short answer over these passages, or directly, with a single call."""
    graph = build_graph(retriever=FixedRetriever(found or []))
    context = Context(
        strategy="single" if found else "none", layout=layout, model="openai:fake", answers="short"
    )
    return await graph.ainvoke({"question": QUESTION}, context=context)


async def test_direct_inline_is_figure_7_verbatim(fake: FakeOpenAI) -> None:
    fake.says("Ilsabet Corrane")
    result = await run(fake)
    assert fake.requests[0]["messages"] == [{"role": "user", "content": FIGURE_7}]
    assert (result["answer"], result["citations"]) == ("Ilsabet Corrane", [])
    assert result["usage"]["prompt_tokens"] > 0


async def test_grounded_inline_is_figure_8_with_a_request_for_citations(fake: FakeOpenAI) -> None:
    fake.says("Ilsabet Corrane [1]")
    result = await run(fake, [LIGHT, CORRANE])
    (message,) = fake.requests[0]["messages"]
    assert message["content"].startswith(FIGURE_8)
    assert message["content"].endswith(DOCUMENTS)
    added = message["content"].removeprefix(FIGURE_8).removesuffix(DOCUMENTS)
    assert "cite" in added
    assert added.count(".") == 1
    assert result["answer"] == "Ilsabet Corrane [1]"


async def test_the_turns_layout_ends_with_the_question(fake: FakeOpenAI) -> None:
    fake.says("Ilsabet Corrane")
    await run(fake, [LIGHT], "turns")
    messages = fake.requests[0]["messages"]
    assert messages[0]["role"] == "system"
    assert messages[-1]["content"].endswith(f"Question: {QUESTION}")
    assert LIGHT["text"] in messages[-1]["content"]
    assert fake.requests[0]["stop"] == ["\n"]


@pytest.mark.parametrize("strategy", ["single", "multi"])
async def test_a_citation_has_the_source_page_and_section_of_its_passage(
    fake: FakeOpenAI, strategy: Any
) -> None:
    source = {"source": "lights.pdf", "page": 7, "section": "Designers"}
    fake.answers(by_task(reason="So the answer is: Corrane.", answer="Ilsabet Corrane [1]"))
    found = [Hit(**LIGHT, **source)]  # type: ignore[typeddict-item]
    graph = build_graph(retriever=FixedRetriever(found))
    context = Context(strategy=strategy, model="openai:fake")
    result = await graph.ainvoke({"question": QUESTION}, context=context)
    assert result["citations"] == [
        {"id": LIGHT["id"], "title": LIGHT["title"], "quote": FACT, "number": 1, **source}
    ]


async def test_the_answer_s_message_carries_citations_and_usage(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", answer="Ilsabet Corrane [1]"))
    graph = build_graph(InMemorySaver(), retriever=FixedRetriever([LIGHT]), router=FixedRouter("B"))
    thread: Any = {"configurable": {"thread_id": "1"}}
    result = await graph.ainvoke({"question": QUESTION}, thread)
    message = (await graph.aget_state(thread)).values["messages"][-1]
    assert message == result["messages"][-1]
    assert message.text == result["answer"] == "Ilsabet Corrane [1]"
    assert message.additional_kwargs["citations"] == result["citations"]
    read, written = result["usage"]["prompt_tokens"], result["usage"]["completion_tokens"]
    assert (read, written) == (2 * PROMPT_TOKENS, 2 * COMPLETION_TOKENS)
    assert message.usage_metadata == {
        "input_tokens": read,
        "output_tokens": written,
        "total_tokens": read + written,
    }


def test_a_mark_becomes_a_citation_with_its_number_and_stays_in_the_text() -> None:
    answer = read_answer("Lissmere [2].", EVIDENCE)
    assert answer.text == "Lissmere [2]."
    assert answer.citations == [
        {
            "id": CORRANE["id"],
            "title": "Ilsabet Corrane",
            "quote": "Ilsabet Corrane was born in Lissmere.",
            "number": 2,
        }
    ]
    assert answer.warnings == []


BOTH = ["Skerrane Light", "Ilsabet Corrane"]
NOT_FOUND = "the model cited [{}], which was not retrieved"
DOUBTED = "[1] does not support the answer that cites it"
UNSUPPORTED = "no retrieved passage supports the answer"
READ: list[tuple[str, str, list[str], list[str]]] = [
    ("Lissmere [1][2]", "Lissmere [1][2]", BOTH, [DOUBTED]),
    ("Lissmere [1, 2]", "Lissmere [1, 2]", BOTH, [DOUBTED]),
    ("[2] Lissmere", "[2] Lissmere", BOTH[1:], []),
    ("Lissmere [2] [2]", "Lissmere [2] [2]", BOTH[1:], []),
    ("Answer: Lissmere [2]", "Lissmere [2]", BOTH[1:], []),
    ("Lissmere [2, 9].", "Lissmere [2].", BOTH[1:], [NOT_FOUND.format(9)]),
    ("Lissmere [2][0]", "Lissmere [2]", BOTH[1:], [NOT_FOUND.format(0)]),
    ("Lissmere [2][9][9, 8]", "Lissmere [2]", BOTH[1:], [*map(NOT_FOUND.format, (9, 8))]),
    ("640 passengers", "640 passengers", ["Ondrith Maid"], []),  # traced by its words
    ("1777 [1]", "1777 [1]", BOTH[:1], [DOUBTED]),
    ("I don't know when, but 1858 [1]", "I don't know when, but 1858 [1]", BOTH[:1], []),
    *((each, each, [], [UNSUPPORTED]) for each in ("David Hockney", "Yes", "The.", "!")),
    (f"[{'9' * 5_000}]", f"[{'9' * 5_000}]", [], [UNSUPPORTED]),  # no mark has so many digits
]


@pytest.mark.parametrize(("reply", "text", "cited", "warnings"), READ)
def test_an_answer_is_read_with_its_marks(
    reply: str, text: str, cited: list[str], warnings: list[str]
) -> None:
    answer = read_answer(reply, EVIDENCE)
    assert (answer.known, answer.text, answer.warnings) == (True, text, warnings)
    assert [each["title"] for each in answer.citations] == cited
    assert all(("number" in each) == ("[" in reply) for each in answer.citations)
    if "Lissmere" in reply:
        assert without_marks(answer.text, answer.citations).rstrip(".") == "Lissmere"


@pytest.mark.parametrize(
    ("reply", "text", "warnings"),
    [
        ("Paris [1]", "Paris", [NOT_FOUND.format(1)]),
        ("x [9] [9] [8]", "x", [*map(NOT_FOUND.format, (9, 8))]),
        ("a[1] is the second element", "a[1] is the second element", []),
    ],
)
def test_a_direct_answer_keeps_brackets_inside_it(
    reply: str, text: str, warnings: list[str]
) -> None:
    assert read_answer(reply, []) == Answer(text, True, [], warnings)


@pytest.mark.parametrize(
    ("replies", "warnings"),
    [
        (
            ["I don't know.", "I don’t know [1]", "i do not know", '"I don\'t know"'],
            [],
        ),
        (["", "  \n", "[1]", "Answer:"], ["the model gave an empty answer"]),
    ],
)
def test_an_unknown_or_empty_answer_has_no_citations(
    replies: list[str], warnings: list[str]
) -> None:
    for reply in replies:
        assert read_answer(reply, EVIDENCE) == Answer("I don't know", False, [], warnings)


MARKED = st.lists(
    st.one_of(st.sampled_from(["Lissmere", "1858", " ", "[1]", "[2]", "[7]", "[1,3]"]), st.text())
).map("".join)


@given(MARKED)
def test_citations_name_each_shown_passage_once_and_quote_it(reply: str) -> None:
    answer = read_answer(reply, EVIDENCE)
    ids = [citation["id"] for citation in answer.citations]
    shown = {passage["id"]: passage["text"] for passage in EVIDENCE}
    assert len(ids) == len(set(ids))
    assert all(each["quote"] in shown[each["id"]] for each in answer.citations)
    assert answer.text


@pytest.mark.parametrize(
    ("text", "form"),
    [("The U.S.", "us"), ("An  apple, a day!", "apple day"), ("a", ""), ("Theatre", "theatre")],
)
def test_normalised_forms(text: str, form: str) -> None:
    assert normalise(text) == form


@pytest.mark.parametrize("evidence", [[], [LIGHT]])
def test_a_long_row_of_markers_is_read_quickly(evidence: list[Hit]) -> None:
    started = time.monotonic()
    assert read_answer(" [1]" * 5_000 + " x", evidence).text
    assert read_answer("a[1]" + " [2]" * 5_000, evidence).text
    assert time.monotonic() - started < 10  # minutes, if each marker is tried as the first


@pytest.mark.parametrize(
    ("text", "reply", "quote"),
    [
        (
            "Der Mietvertrag wurde am 3. Mai 1998 unterschrieben. Die Miete beträgt 640 Kronen.",
            "Am 3. Mai 1998",
            "Der Mietvertrag wurde am 3. Mai 1998 unterschrieben.",
        ),
        ("He lives in room 3. Maybe it is blue.", "room 3", "He lives in room 3."),
        (
            "A light is on a light reef. It was lit in 1858.",
            "A light in 1858",
            "It was lit in 1858.",
        ),
    ],
)
def test_a_quote_is_the_sentence_with_the_answers_number(text: str, reply: str, quote: str) -> None:
    (citation,) = read_answer(f"{reply} [1]", [hit("Notes", text)]).citations
    assert citation["quote"] == quote


def test_a_quote_of_code_is_a_few_lines() -> None:
    lines = [f"    step_{number} = prepare(part_{number})" for number in range(11)]
    code = "def build(parts):\n" + "\n".join(lines) + "\n    return step_10  # moored in Lissmere"
    (citation,) = read_answer("Lissmere [1]", [hit("build.py", code)]).citations
    quote = citation["quote"]
    assert "moored in Lissmere" in quote
    assert len(quote.splitlines()) <= 4
    assert quote in code


@pytest.mark.parametrize("part", ["3. Mai ", "3. ", "。", "! ", "a.\n"])
def test_a_long_text_is_split_in_linear_time(part: str) -> None:
    started = time.process_time()
    sentences(part * (68_000 // len(part)), "de")
    assert time.process_time() - started < 10  # half of "3. Mai " took 7 s before
