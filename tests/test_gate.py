"""The gate: how it reads replies, what each mode sends, and what an invalid reply leads to."""

import json
import math
import time
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from doubles import FERRY, FixedRetriever, FixedRouter, by_task
from fake_openai import PROMPT_TOKENS, FakeOpenAI, Position, Reply
from hypothesis import given
from hypothesis import strategies as st

from hopgate import Context, build_graph
from hopgate.models.chat import Completion, ModelError
from hopgate.nodes import gate
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import GateDecision

QUESTION = "Who won the cup?"
KEEPER = "Which lighthouse keeper of Skerrane Light retired this year?"

# RetrievalQA, figures 5 and 6, verbatim.
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

REPLIES = json.loads((Path(__file__).parent / "data/gate_replies.json").read_text("utf-8"))


@pytest.mark.parametrize("verdict", REPLIES)
def test_replies_are_read_as_yes_no_or_neither(verdict: str) -> None:
    assert {reply: gate.read_verdict(reply) for reply in REPLIES[verdict]} == dict.fromkeys(
        REPLIES[verdict], verdict
    )


@given(st.text())
def test_any_reply_is_read_as_one_of_three(reply: str) -> None:
    assert gate.read_verdict(reply) in ("yes", "no", "invalid")


@given(st.sampled_from(["yes", "no"]), st.text(" \n\t*\"'[](){}.,:!`_", max_size=8))
def test_punctuation_around_a_verdict_changes_nothing(verdict: str, around: str) -> None:
    assert gate.read_verdict(f"{around}{verdict.upper()}{around[::-1]}") == verdict


async def decide(fake: FakeOpenAI, **settings: Any) -> GateDecision:
    context = {"model": "openai:fake", "gate": "ta-are", "today": "2024-02-29", "gate_demos": 4}
    runtime = NodeRuntime(Context(**(context | settings)))
    decision = await gate.decide(QUESTION, runtime)
    assert runtime.usage["llm_calls"] == 1
    assert runtime.usage["prompt_tokens"] > 0
    return decision


async def test_ta_are_inline_is_figure_6_verbatim(fake: FakeOpenAI) -> None:
    fake.says("[Yes]")
    decision = await decide(fake)
    assert fake.requests[0]["messages"] == [{"role": "user", "content": FIGURE_6}]
    assert (decision["answer"], decision["retrieve"], decision["reply"]) == ("yes", True, "[Yes]")


async def test_vanilla_inline_is_figure_5_verbatim(fake: FakeOpenAI) -> None:
    fake.says("[No]")
    decision = await decide(fake, gate="vanilla")
    assert fake.requests[0]["messages"] == [{"role": "user", "content": FIGURE_5}]
    assert (decision["answer"], decision["retrieve"], decision["p_yes"]) == ("no", False, None)


@pytest.mark.parametrize(("gate_invalid", "strategy"), [("retrieve", "single"), ("direct", "none")])
async def test_gate_invalid_decides_what_an_invalid_reply_leads_to(
    fake: FakeOpenAI, gate_invalid: Any, strategy: str
) -> None:
    fake.answers(by_task(gate="Perhaps.", direct="Nobody", answer="Nobody"))
    graph = build_graph(router=FixedRouter("B"), retriever=FixedRetriever([FERRY]))
    context = Context(gate_invalid=gate_invalid)
    decision = (await graph.ainvoke({"question": QUESTION}, context=context))["decision"]
    assert decision["gate"]["answer"] == "invalid"
    assert decision["gate"]["retrieve"] == (gate_invalid == "retrieve")
    assert decision["gate"]["reply"] == "Perhaps."
    assert "neither Yes nor No" in decision["gate"]["reason"]
    assert decision["strategy"] == strategy


def logs(**probabilities: float) -> Position:
    return {token: math.log(p) for token, p in probabilities.items()}


@pytest.mark.parametrize(
    ("threshold", "answer"), [(0.0, "yes"), (0.19, "yes"), (0.21, "no"), (1.0, "no")]
)
async def test_confidence_compares_the_probability_of_yes(
    fake: FakeOpenAI, threshold: float, answer: str
) -> None:
    fake.says(Reply("[No]", logprobs=[{"[": -0.01}, logs(No=0.6, Yes=0.15, Maybe=0.1)]))
    decision = await decide(fake, gate="confidence", gate_threshold=threshold)
    assert decision["p_yes"] == pytest.approx(0.2)
    assert decision["threshold"] == threshold
    assert (decision["answer"], decision["retrieve"]) == (answer, answer == "yes")
    assert "0.200" in decision["reason"]
    assert fake.requests[0]["logprobs"] is True


async def test_confidence_without_a_verdict_among_the_tokens_is_invalid(fake: FakeOpenAI) -> None:
    fake.says(Reply("Paris", logprobs=[logs(Paris=0.9, No=0.01)]))
    decision = await decide(fake, gate="confidence")
    assert (decision["answer"], decision["retrieve"], decision["p_yes"]) == ("invalid", True, None)


def test_probabilities_of_a_verdicts_spellings_are_summed() -> None:
    position = {token: math.log(0.1) for token in ("Yes", " yes", "YES", "[Yes]", "No")}
    completion = Completion("", 0, 0, (position,))
    assert gate.probability_of_yes(completion) == pytest.approx(0.8)


GATE_CALLS: list[tuple[dict[str, Any], int]] = [
    ({"gate": "ta-are"}, 1),
    ({"gate": "vanilla"}, 1),
    ({"gate": "auto"}, 1),
    ({"gate": "always"}, 0),
    ({"gate": "never"}, 0),
    ({"gate": "off"}, 0),
    ({"gate": "draft"}, 0),
    ({"strategy": "single"}, 0),
]


@pytest.mark.parametrize(("settings", "calls"), GATE_CALLS)
async def test_only_prompting_gates_cost_a_call(
    fake: FakeOpenAI, settings: dict[str, Any], calls: int
) -> None:
    direct = Reply("x", logprobs=[{"x": -0.1}])
    fake.answers(by_task(gate="[Yes]", reason="So the answer is: x", direct=direct, answer="x"))
    graph = build_graph(router=FixedRouter("B"), retriever=FixedRetriever([FERRY]))
    await graph.ainvoke({"question": QUESTION}, context=Context(**settings))
    assert sum("determine whether you need" in prompt for prompt in fake.prompts) == calls


def graph(**options: Any) -> Any:
    return build_graph(router=FixedRouter("B"), retriever=FixedRetriever([FERRY]), **options)


def clock(moment: str) -> Callable[[], datetime]:
    return lambda: datetime.fromisoformat(moment)


async def gate_prompt(fake: FakeOpenAI, context: Context, **options: Any) -> str:
    """Return the gate's prompt."""
    fake.requests.clear()
    fake.answers(by_task(gate="[No]", direct="x"))
    await graph(**options).ainvoke({"question": QUESTION}, context=context)
    return fake.prompts[0]


# The date


async def test_the_requests_date_wins_over_the_clocks(fake: FakeOpenAI) -> None:
    now = clock("2024-02-29T12:00+00:00")
    prompt = await gate_prompt(fake, Context(today=date(2031, 7, 4)), clock=now)
    assert prompt.startswith("Today is 2031-07-04. ")
    assert (await gate_prompt(fake, Context(), clock=now)).startswith("Today is 2024-02-29. ")


@pytest.mark.parametrize(
    ("moment", "timezone", "today"),
    [
        ("2024-02-28T23:30+00:00", "Europe/Berlin", "2024-02-29"),
        ("2024-03-01T00:30+00:00", "America/New_York", "2024-02-29"),
        ("2024-02-28T23:30-05:00", "UTC", "2024-02-29"),
    ],
)
async def test_the_time_zone_decides_the_date_near_midnight(
    fake: FakeOpenAI, moment: str, timezone: str, today: str
) -> None:
    prompt = await gate_prompt(fake, Context(timezone=timezone), clock=clock(moment))
    assert prompt.startswith(f"Today is {today}. ")


async def test_the_default_time_zone_is_the_systems(
    fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")  # 14 hours ahead
    time.tzset()
    try:
        prompt = await gate_prompt(fake, Context(), clock=clock("2024-02-28T23:30+00:00"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert prompt.startswith("Today is 2024-02-29. ")


async def test_a_clock_without_a_time_zone_is_refused(fake: FakeOpenAI) -> None:
    with pytest.raises(ValueError, match="without a time zone; use an aware datetime"):
        await gate_prompt(fake, Context(), clock=clock("2024-02-28T23:30"))


# Ablations (RetrievalQA, tables 2, 8 and 9, figure 4), in both layouts


@pytest.mark.parametrize("layout", ["inline", "turns"])
@pytest.mark.parametrize("mode", ["ta-are", "confidence"])
@pytest.mark.parametrize("dated", [True, False])
@pytest.mark.parametrize("count", [None, 0, 2, 8])
async def test_date_and_demonstrations_can_be_left_out(
    fake: FakeOpenAI, layout: Any, mode: Any, dated: bool, count: int | None
) -> None:
    fake.says(Reply("[No]", logprobs=[logs(No=0.9)]))
    await decide(fake, gate=mode, layout=layout, gate_date=dated, gate_demos=count)
    expected = count
    if count is None:
        expected = 12 if (mode, layout) == ("confidence", "turns") else 4
    messages = fake.requests[0]["messages"]
    if layout == "turns":
        system, *turns, last = messages
        assert [turn["role"] for turn in turns] == ["user", "assistant"] * expected
        assert [turn["content"] for turn in turns[1::2]] == ["[No]", "[Yes]"] * (expected // 2)
        assert (system["role"], last["content"]) == ("system", QUESTION)
    else:
        (message,) = messages
        assert message["content"].count("Answer: [") == expected
        assert ("Here are some examples" in message["content"]) == (expected > 0)
    assert messages[0]["content"].startswith("Today is") == dated


# Draft: answer directly first

CERTAIN = [logs(Par=0.98, The=0.01), logs(lies=0.97, lay=0.02)]
UNCERTAIN = [logs(Par=0.98, The=0.01), logs(lies=0.5, lay=0.5)]  # ln 2 / ln 20 = 0.231


@pytest.mark.parametrize("layout", ["inline", "turns"])
async def test_a_certain_draft_is_the_answer_and_the_only_call(
    fake: FakeOpenAI, layout: Any
) -> None:
    fake.answers(by_task(direct=Reply("Answer: Paris", logprobs=CERTAIN)))
    context = Context(gate="draft", gate_threshold=0.2, layout=layout)
    result = await graph().ainvoke({"question": QUESTION}, context=context)
    decision = result["decision"]["gate"]
    assert result["answer"] == "Paris"
    assert (decision["mode"], decision["answer"], decision["retrieve"]) == ("draft", "no", False)
    assert 0 < decision["uncertainty"] < 0.2 == decision["threshold"]
    assert decision["reply"] == "Answer: Paris"
    assert decision["p_yes"] is None
    assert "< 0.2" in decision["reason"]
    assert result["usage"]["llm_calls"] == len(fake.requests) == 1
    assert result["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert result["decision"]["answered"] is True
    assert result["hops"] == []


async def test_the_draft_uses_the_prompt_of_a_direct_answer(fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct=Reply("Paris", logprobs=CERTAIN)))
    for layout in ("inline", "turns"):
        for settings in ({"gate": "draft"}, {"strategy": "none"}):
            context = Context(layout=layout, answers="short", **settings)  # type: ignore[arg-type]
            await graph().ainvoke({"question": QUESTION}, context=context)
    keys = ("messages", "stop", "max_tokens", "max_completion_tokens")
    sent = [{key: body.get(key) for key in keys} for body in fake.requests]
    assert sent[0] == sent[1]
    assert sent[2] == sent[3]


async def test_an_uncertain_draft_is_discarded_and_retrieval_follows(fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct=Reply("Paris", logprobs=UNCERTAIN), answer="640 passengers [1]"))
    result = await graph().ainvoke(
        {"question": QUESTION}, context=Context(gate="draft", gate_threshold=0.23)
    )
    decision = result["decision"]["gate"]
    assert decision["uncertainty"] == pytest.approx(math.log(2) / math.log(20))
    assert (decision["answer"], decision["retrieve"]) == ("yes", True)
    assert result["answer"] == "640 passengers [1]"
    assert result["usage"]["llm_calls"] == len(fake.requests) == 2
    assert result["usage"]["retrieval_steps"] == 1


@pytest.mark.parametrize("reply", ["I don't know", "I do not know.", "", "Answer:"])
async def test_an_unknown_or_empty_draft_is_fully_uncertain(fake: FakeOpenAI, reply: str) -> None:
    fake.answers(by_task(direct=Reply(reply, logprobs=CERTAIN if reply else None), answer="x"))
    context = Context(gate="draft", gate_threshold=1)
    decision = (await graph().ainvoke({"question": QUESTION}, context=context))["decision"]
    assert (decision["gate"]["retrieve"], decision["gate"]["uncertainty"]) == (True, 1.0)
    assert decision["strategy"] == "single"


@pytest.mark.parametrize("mode", ["confidence", "draft"])
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply("Paris"), "needs log-probabilities"),
        (Reply(status=400, error="logprobs is not supported"), "logprobs is not supported"),
    ],
)
async def test_an_endpoint_without_logprobs_is_an_error_with_advice(
    fake: FakeOpenAI, mode: Any, reply: Reply, said: str
) -> None:
    fake.answers(lambda _: reply)
    with pytest.raises(ModelError, match=said) as caught:
        await graph().ainvoke({"question": QUESTION}, context=Context(gate=mode))
    assert fake.base_url in str(caught.value)
    assert "use gate 'ta-are'" in str(caught.value)


def test_uncertainty_is_that_of_the_least_certain_token() -> None:
    def of(*positions: Position) -> float:
        return gate.uncertainty(Completion("", 0, 0, positions))

    certain, even = {"a": 0.0}, dict.fromkeys("abcdefghijklmnopqrst", math.log(1 / 20))
    assert of(certain) == 0
    assert of(even) == pytest.approx(1)
    assert of(certain, even, certain) == of(even)
    # renormalised over the given tokens
    assert of(logs(a=0.1, b=0.1)) == pytest.approx(of(logs(a=0.5, b=0.5)))


@pytest.mark.parametrize(
    ("question", "answer"), [("What is the capital of France?", "no"), (KEEPER, "yes")]
)
async def test_the_embedded_models_gate_tells_known_from_unknown(
    embedded: str, question: str, answer: str
) -> None:
    context = Context(model=embedded, today=date(2026, 11, 21), gate_invalid="direct")
    decision = await gate.decide(question, NodeRuntime(context))
    assert decision["p_yes"] is not None
    assert decision["answer"] == answer, decision


async def test_the_embedded_models_draft_tells_known_from_unknown(embedded: str) -> None:
    for question, answer in [("What is the capital of Spain?", "no"), (KEEPER, "yes")]:
        runtime = NodeRuntime(Context(model=embedded, gate="draft"))
        decision = await gate.decide(question, runtime)
        assert decision["answer"] == answer, decision
        assert decision["reply"]
