"""The gate: how replies are read, what each mode asks, what invalid and doubtful mean."""

import math
from datetime import date
from typing import Any

import pytest
from doubles import FERRY, FixedRetriever, FixedRouter, by_task
from fake_openai import FakeOpenAI, Position, Reply
from hypothesis import given
from hypothesis import strategies as st

from hopgate import Context, build_graph
from hopgate.models import chat
from hopgate.models.chat import Completion, ModelError
from hopgate.nodes import gate

QUESTION = "Who won the cup?"

# RetrievalQA, figures 5 and 6, word by word.
FIGURE_5 = (
    "Given a question, determine whether you need to retrieve external resources, such as "
    "real-time search engines, Wikipedia, or databases, to answer the question correctly. Only "
    'answer "[Yes]" or "[No]".\n\n'
    f"Question: {QUESTION}\nAnswer:"
)
FIGURE_6 = (
    "Today is 2024-02-29. "
    "Given a question, determine whether you need to retrieve external resources, such as "
    "real-time search engines, Wikipedia, or databases, to answer the question correctly. Only "
    'answer "[Yes]" or "[No]".\n\n'
    "Here are some examples:\n"
    "Question: What is the boiling point of water?\nAnswer: [No]\n\n"
    "Question: Which five NFL teams have never played in a Super Bowl, as of today?\n"
    "Answer: [Yes]\n\n"
    "Question: What is the capital of France?\nAnswer: [No]\n\n"
    "Question: What was the occupation of Walter de la Pole?\nAnswer: [Yes]\n\n"
    f"Question: {QUESTION}\nAnswer:"
)

REPLIES = {
    # what the prompt asks for, and how models dress it
    "[Yes]": "yes",
    "[No]": "no",
    "[Yes].": "yes",
    "[yes]": "yes",
    "[NO]": "no",
    "[ No ]": "no",
    " [Yes]\n": "yes",
    '"[No]"': "no",
    "'[Yes]'": "yes",
    "**[Yes]**": "yes",
    "**No**": "no",
    "__No__": "no",
    "_Yes_": "yes",
    "`[No]`": "no",
    "```\n[Yes]\n```": "yes",
    "(Yes)": "yes",
    "<yes>": "yes",
    "[Yes": "yes",
    "No]": "no",
    "yes!": "yes",
    "Yes": "yes",
    "no.": "no",
    "NO": "no",
    "Yes…": "yes",
    "- Yes": "yes",
    # the first word decides over what the explanation says
    "No, because yes is only for questions about recent events.": "no",
    "Yes\n\nExplanation: No model can know this.": "yes",
    "[Yes] The question is about a local event.": "yes",
    "[No]\n\nQuestion: Who is the mayor?\nAnswer: [Yes]": "no",
    "Yes, you would need a search engine; no general knowledge helps.": "yes",
    "No need to retrieve external resources.": "no",
    "No external resources are needed.": "no",
    # prefixes
    "Answer: [No]": "no",
    "**Answer:** Yes": "yes",
    "Answer: **No**": "no",
    '{"answer": "yes"}': "yes",
    "The answer is yes.": "yes",
    "The answer is [No].": "no",
    "The answer is: **Yes**": "yes",
    "Final answer: no": "no",
    "My answer is no": "no",
    "I would say [Yes].": "yes",
    "Sure! Here is my reply:\n\n[No]": "no",
    "<think>Is it recent? Perhaps.</think>\n\n[Yes]": "yes",
    # neither
    "": "invalid",
    "   \n": "invalid",
    "I don't know": "invalid",
    "Nothing": "invalid",
    "None": "invalid",
    "Not sure.": "invalid",
    "Know": "invalid",
    "Yesterday": "invalid",
    "North Korea": "invalid",
    "Maybe": "invalid",
    "N/A": "invalid",
    "42": "invalid",
    "[Maybe]": "invalid",
    "是": "invalid",
    "The capital of France is Paris.": "invalid",
    "I cannot answer. No information is available.": "invalid",
    "There is no doubt that this needs a search.": "invalid",
    # the choice repeated is no choice
    "[Yes] or [No]": "invalid",
    '"[Yes]" or "[No]"': "invalid",
    "Yes or No": "invalid",
    "yes/no": "invalid",
    "[Yes]/[No]": "invalid",
    'Only answer "[Yes]" or "[No]".': "invalid",
    "The answer is [Yes] or [No].": "invalid",
    "Yes and no": "invalid",
    "[Yes] or [No]: [No]": "no",
    "It could be [Yes], it could be [No].": "invalid",
}


@pytest.mark.parametrize(("reply", "expected"), REPLIES.items())
def test_replies_are_read_as_yes_no_or_neither(reply: str, expected: str) -> None:
    assert gate.parse(reply) == expected


@given(st.text())
def test_any_reply_is_read_as_one_of_three(reply: str) -> None:
    assert gate.parse(reply) in ("yes", "no", "invalid")


@given(st.sampled_from(["yes", "no"]), st.text(" \n\t*\"'[](){}.,:!`_", max_size=8))
def test_punctuation_around_a_verdict_changes_nothing(verdict: str, around: str) -> None:
    assert gate.parse(f"{around}{verdict.upper()}{around[::-1]}") == verdict


async def ask(fake: FakeOpenAI, **options: Any) -> gate.GateDecision:
    settings: dict[str, Any] = {
        "mode": "ta-are",
        "layout": "inline",
        "today": "2024-02-29",
        "threshold": 0.5,
        "retrieve_if_invalid": True,
    }
    model = await chat.load("openai:fake")
    decision, completion = await gate.ask(model, QUESTION, **(settings | options))
    assert completion.prompt_tokens > 0
    return decision


async def test_ta_are_inline_is_figure_6_word_by_word(fake: FakeOpenAI) -> None:
    fake.says("[Yes]")
    decision = await ask(fake)
    assert fake.requests[0]["messages"] == [{"role": "user", "content": FIGURE_6}]
    assert (decision["answer"], decision["retrieve"], decision["reply"]) == ("yes", True, "[Yes]")


async def test_vanilla_inline_is_figure_5_word_by_word(fake: FakeOpenAI) -> None:
    fake.says("[No]")
    decision = await ask(fake, mode="vanilla")
    assert fake.requests[0]["messages"] == [{"role": "user", "content": FIGURE_5}]
    assert (decision["answer"], decision["retrieve"], decision["p_yes"]) == ("no", False, None)


async def test_turns_show_each_demonstration_as_a_turn(fake: FakeOpenAI) -> None:
    fake.says("[No]")
    await ask(fake, layout="turns")
    system, *turns, last = fake.requests[0]["messages"]
    assert system["role"] == "system"
    assert "Today is 2024-02-29." in system["content"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 4
    assert [turn["content"] for turn in turns[1::2]] == ["[No]", "[Yes]", "[No]", "[Yes]"]
    assert last == {"role": "user", "content": QUESTION}


async def test_vanilla_turns_have_neither_date_nor_demonstrations(fake: FakeOpenAI) -> None:
    fake.says("[No]")
    await ask(fake, mode="vanilla", layout="turns")
    system, last = fake.requests[0]["messages"]
    assert "Today" not in system["content"]
    assert last["content"] == QUESTION


@pytest.mark.parametrize(("meaning", "path"), [("retrieve", "single"), ("direct", "none")])
async def test_an_invalid_reply_does_what_the_request_says(
    fake: FakeOpenAI, meaning: Any, path: str
) -> None:
    fake.answers(by_task(gate="Perhaps.", direct="Nobody", answer="Nobody"))
    graph = build_graph(router=FixedRouter("B"), retriever=FixedRetriever([FERRY]))
    context = Context(gate_invalid=meaning)
    decision = (await graph.ainvoke({"question": QUESTION}, context=context))["decision"]
    assert decision["gate"]["answer"] == "invalid"
    assert decision["gate"]["retrieve"] == (meaning == "retrieve")
    assert decision["gate"]["reply"] == "Perhaps."
    assert "neither Yes nor No" in decision["gate"]["reason"]
    assert decision["strategy"] == path


async def test_an_invalid_reply_retrieves_by_default(fake: FakeOpenAI) -> None:
    fake.says("")
    decision = await ask(fake, retrieve_if_invalid=Context().gate_invalid == "retrieve")
    assert (decision["answer"], decision["retrieve"]) == ("invalid", True)


def logs(**probabilities: float) -> Position:
    return {token: math.log(p) for token, p in probabilities.items()}


@pytest.mark.parametrize(
    ("threshold", "answer"), [(0.0, "yes"), (0.19, "yes"), (0.21, "no"), (1.0, "no")]
)
async def test_confidence_compares_the_probability_of_yes(
    fake: FakeOpenAI, threshold: float, answer: str
) -> None:
    fake.says(Reply("[No]", logprobs=[{"[": -0.01}, logs(No=0.6, Yes=0.15, Maybe=0.1)]))
    decision = await ask(fake, mode="confidence", threshold=threshold)
    assert decision["p_yes"] == pytest.approx(0.2)
    assert decision["threshold"] == threshold
    assert (decision["answer"], decision["retrieve"]) == (answer, answer == "yes")
    assert "0.200" in decision["reason"]
    assert fake.requests[0]["logprobs"] is True


async def test_confidence_without_a_verdict_among_the_tokens_is_invalid(fake: FakeOpenAI) -> None:
    fake.says(Reply("Paris", logprobs=[logs(Paris=0.9, No=0.01)]))
    decision = await ask(fake, mode="confidence")
    assert (decision["answer"], decision["retrieve"], decision["p_yes"]) == ("invalid", True, None)


async def test_confidence_without_logprobs_is_one_clear_error(fake: FakeOpenAI) -> None:
    fake.says("[No]")
    with pytest.raises(ModelError, match="needs log-probabilities") as caught:
        await ask(fake, mode="confidence")
    message = str(caught.value)
    assert fake.base_url in message
    assert "use gate 'ta-are'" in message
    assert "\n" not in message


def test_spellings_of_a_verdict_add_up() -> None:
    position = {token: math.log(0.1) for token in ("Yes", " yes", "YES", "[Yes]", "No")}
    completion = Completion("", 0, 0, (position,))
    assert gate.probability_of_yes(completion) == pytest.approx(0.8)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["Yes", "No", " no", "[", "Perhaps", ""]),
            st.floats(max_value=0, allow_nan=False),
        )
    )
)
def test_the_probability_of_yes_is_a_probability(positions: list[Position]) -> None:
    p_yes = gate.probability_of_yes(Completion("", 0, 0, tuple(positions)))
    assert p_yes is None or 0 <= p_yes <= 1


GATE_CALLS: list[tuple[dict[str, Any], int]] = [
    ({"gate": "ta-are"}, 1),
    ({"gate": "vanilla"}, 1),
    ({"gate": "auto"}, 1),
    ({"gate": "always"}, 0),
    ({"gate": "never"}, 0),
    ({"gate": "off"}, 0),
    ({"gate": "ta-are", "alpha": 1}, 0),
    ({"gate": "never", "alpha": 1}, 0),
    ({"strategy": "none"}, 0),
    ({"strategy": "single"}, 0),
    ({"strategy": "multi"}, 0),
]


@pytest.mark.parametrize(("settings", "calls"), GATE_CALLS)
async def test_only_a_gate_that_asks_costs_a_call(
    fake: FakeOpenAI, settings: dict[str, Any], calls: int
) -> None:
    fake.answers(by_task(gate="[Yes]", reason="So the answer is: x", direct="x", answer="x"))
    graph = build_graph(router=FixedRouter("B"), retriever=FixedRetriever([FERRY]))
    await graph.ainvoke({"question": QUESTION}, context=Context(**settings))
    assert sum("determine whether you need" in prompt for prompt in fake.prompts) == calls


async def test_the_date_is_the_request_s(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="x"))
    graph = build_graph(router=FixedRouter("B"), retriever=FixedRetriever([FERRY]))
    context = Context(today=date(2031, 7, 4))
    await graph.ainvoke({"question": QUESTION}, context=context)
    await graph.ainvoke({"question": QUESTION}, context=Context())
    assert fake.prompts[0].startswith("Today is 2031-07-04. ")
    assert fake.prompts[2].startswith(f"Today is {date.today().isoformat()}. ")


async def test_auto_is_ta_are_for_an_endpoint(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="x"))
    graph = build_graph(router=FixedRouter("B"), retriever=FixedRetriever([FERRY]))
    result = await graph.ainvoke({"question": QUESTION})
    assert result["decision"]["gate"]["mode"] == "ta-are"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the capital of France?", "no"),
        ("Which lighthouse keeper of Skerrane Light retired this year?", "yes"),
    ],
)
async def test_the_embedded_model_s_gate_says_both(
    embedded: str, question: str, answer: str
) -> None:
    model = await chat.load(embedded)
    decision, _ = await gate.ask(
        model,
        question,
        mode=model.gate,
        layout=model.layout,
        today="2026-11-21",
        threshold=model.gate_threshold,
        retrieve_if_invalid=False,
    )
    assert decision["p_yes"] is not None
    assert decision["answer"] == answer, decision
