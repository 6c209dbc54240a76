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


def titles(answer: Answer) -> list[str]:
    return [citation["title"] for citation in answer.citations]


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


def test_a_passage_found_without_a_mark_has_no_number() -> None:
    (citation,) = read_answer("She was born in Lissmere.", EVIDENCE).citations
    assert "number" not in citation


@pytest.mark.parametrize(
    ("reply", "text", "cited"),
    [
        ("Lissmere [1][2]", "Lissmere [1][2]", ["Skerrane Light", "Ilsabet Corrane"]),
        ("Lissmere [1, 2]", "Lissmere [1, 2]", ["Skerrane Light", "Ilsabet Corrane"]),
        ("[2] Lissmere", "[2] Lissmere", ["Ilsabet Corrane"]),
        ("Lissmere [2] [2]", "Lissmere [2] [2]", ["Ilsabet Corrane"]),
        ("Answer: Lissmere [2]", "Lissmere [2]", ["Ilsabet Corrane"]),
        ("Lissmere [2, 9].", "Lissmere [2].", ["Ilsabet Corrane"]),
    ],
)
def test_markers_are_read_in_every_format(reply: str, text: str, cited: list[str]) -> None:
    answer = read_answer(reply, EVIDENCE)
    assert answer.text == text
    assert titles(answer) == cited
    assert without_marks(answer.text, answer.citations).rstrip(".") == "Lissmere"


@pytest.mark.parametrize("number", [0, 4, 999])
def test_a_marker_for_a_passage_not_shown_is_dropped_with_a_warning(number: int) -> None:
    answer = read_answer(f"Lissmere [2][{number}]", EVIDENCE)
    assert answer.text == "Lissmere [2]"
    assert titles(answer) == ["Ilsabet Corrane"]
    assert answer.warnings == [f"the model cited [{number}], which was not retrieved"]


def test_a_marker_without_passages_is_dropped_with_a_warning() -> None:
    answer = read_answer("Paris [1]", [])
    assert (answer.text, answer.citations) == ("Paris", [])
    assert answer.warnings == ["the model cited [1], which was not retrieved"]


def test_a_number_too_long_for_a_marker_stays_text() -> None:
    answer = read_answer(f"Lissmere [{'9' * 5000}]", EVIDENCE)
    assert answer.text.startswith("Lissmere [999")


def test_an_answer_without_markers_is_traced_to_its_passage() -> None:
    answer = read_answer("640 passengers", EVIDENCE)
    assert titles(answer) == ["Ondrith Maid"]
    assert answer.citations[0]["quote"] == FERRY["text"]
    assert answer.warnings == []


def test_the_quote_is_a_sentence_of_the_passage() -> None:
    (citation,) = read_answer("lit in 1858", EVIDENCE).citations
    assert citation["quote"] == "It was lit in 1858."


@pytest.mark.parametrize("reply", ["David Hockney", "Yes", "The.", "!"])
def test_an_unsupported_answer_adds_a_warning(reply: str) -> None:
    answer = read_answer(reply, EVIDENCE)
    assert answer.known
    assert answer.citations == []
    assert answer.warnings == ["no retrieved passage supports the answer"]


@pytest.mark.parametrize(
    "reply",
    ["I don't know", "I don't know.", "I don’t know [1]", "i do not know", '"I don\'t know"'],
)
def test_i_dont_know_has_neither_citations_nor_warnings(reply: str) -> None:
    answer = read_answer(reply, EVIDENCE)
    assert answer == Answer("I don't know", False, [], [])


@pytest.mark.parametrize("reply", ["", "  \n", "[1]", "Answer:"])
def test_an_empty_answer_adds_a_warning(reply: str) -> None:
    answer = read_answer(reply, EVIDENCE)
    assert (answer.text, answer.known, answer.citations) == ("I don't know", False, [])
    assert answer.warnings == ["the model gave an empty answer"]


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


def test_brackets_inside_a_direct_answer_are_kept() -> None:
    answer = read_answer("a[1] is the second element", [])
    assert (answer.text, answer.warnings) == ("a[1] is the second element", [])


def test_a_citation_without_a_word_of_the_answer_adds_a_warning() -> None:
    answer = read_answer("The Treaty of Wumbo, 1777 [1]", EVIDENCE)
    assert answer.warnings == ["[1] does not support the answer that cites it"]


def test_an_answer_after_a_partial_i_dont_know_counts() -> None:
    reply = "I don't know the month, but it was lit in 1858 [1]."
    assert read_answer(reply, EVIDENCE).known


def test_the_quote_is_the_sentence_with_the_answers_number() -> None:
    text = "The lighthouse stands on a lighthouse reef. It was lit in 1858."
    reef = [Hit(id="1", title="Reef", text=text, score=1.0)]
    (citation,) = read_answer("The first lighthouse was built in 1858.", reef).citations
    assert citation["quote"] == "It was lit in 1858."


@pytest.mark.parametrize("evidence", [[], [LIGHT]])
def test_a_long_row_of_markers_is_read_quickly(evidence: list[Hit]) -> None:
    started = time.monotonic()
    assert read_answer(" [1]" * 5_000 + " x", evidence).text
    assert read_answer("a[1]" + " [2]" * 5_000, evidence).text
    assert time.monotonic() - started < 10  # minutes, if each marker is tried as the first


@pytest.mark.parametrize(("evidence", "reply"), [([], "x [9] [9] [8]"), ([LIGHT], "x [9][9, 8]")])
def test_each_bad_marker_gets_one_warning(evidence: list[Hit], reply: str) -> None:
    found = [each for each in read_answer(reply, evidence).warnings if "was not" in each]
    assert found == [f"the model cited [{n}], which was not retrieved" for n in (9, 8)]


@pytest.mark.parametrize(
    ("text", "reply", "quote"),
    [
        (
            "Der Mietvertrag wurde am 3. Mai 1998 unterschrieben. Die Miete beträgt 640 Kronen.",
            "Am 3. Mai 1998",
            "Der Mietvertrag wurde am 3. Mai 1998 unterschrieben.",
        ),
        ("He lives in room 3. Maybe it is blue.", "room 3", "He lives in room 3."),
    ],
)
def test_a_quote_does_not_end_at_the_number_of_a_date(text: str, reply: str, quote: str) -> None:
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
