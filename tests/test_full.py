"""Full answers: in their conversation, with an app's own prompts, each statement checked."""

from typing import Any

import pytest
from doubles import CORRANE, LIGHT, FixedRetriever, FixedRouter, TalkingModel, by_task
from fake_openai import FakeOpenAI, Reply
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langgraph.checkpoint.memory import InMemorySaver

from hopgate import Context, build_graph
from hopgate.commands.new import TEMPLATE
from hopgate.models import chat
from hopgate.nodes.answers.reading import read_full_answer
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.run.conversation import trimmed
from hopgate.nodes.run.limits import Limits

QUESTION = "Who designed Skerrane Light, and when was it lit?"
EVIDENCE = [LIGHT, CORRANE]


def graph(**given: Any) -> Any:
    return build_graph(router=FixedRouter("B"), **{"retriever": FixedRetriever(EVIDENCE), **given})


# The prompt


async def test_the_prompt_has_conversation_passages_and_message(fake: FakeOpenAI) -> None:
    fake.answers(by_task(answer="In 1858 [1].", condense=QUESTION))
    messages: Any = [
        SystemMessage("Answer like a keeper."),
        HumanMessage("Who keeps it?"),
        AIMessage("Nobody [2].", additional_kwargs={"citations": [{"number": 2}]}),
        AIMessage("", tool_calls=[{"name": "x", "args": {}, "id": "1"}]),
        HumanMessage("line one\nline two?"),
    ]
    app = graph(instructions="Be kind.")
    await app.ainvoke({"messages": messages}, context=Context(strategy="single"))
    system, asked, said, last = (each["content"] for each in fake.requests[-1]["messages"])
    assert system == f"{prompts.FULL_GROUNDED}\n\nBe kind.\n\nAnswer like a keeper."
    assert (asked, said) == ("Who keeps it?", "Nobody.")
    assert last.startswith("Passages:\n\n[1] Skerrane Light\n")
    assert last.endswith("\n\nMessage:\n\nline one\nline two?")
    assert "max_completion_tokens" not in fake.requests[-1]


def test_a_long_conversation_is_trimmed_from_its_start() -> None:
    said: list[Any] = []
    for n in range(50):
        said += [HumanMessage(f"{n} {'why ' * 30}"), AIMessage(f"{n} {'so ' * 30}")]
    kept = trimmed(said, 500)
    assert kept == said[-len(kept) :] and kept[0].type == "human" and 2 <= len(kept) < 20
    assert trimmed(said, 0) == []


async def test_the_conversation_leaves_room_for_the_message() -> None:
    model = TalkingModel(say=lambda *_: "x", profile={"max_input_tokens": 3_000})
    past: Any = [("user", "why " * 500), ("assistant", "so " * 500)] * 20
    await graph(model=model).ainvoke({"messages": [*past, ("user", "hello!")]})
    assert 5_000 < len(model.prompts[0]) < 9_000


# Length and budget


async def test_the_length_follows_request_budget_and_operator(fake: FakeOpenAI) -> None:
    async def limit(app: Any, **settings: Any) -> int | None:
        fake.answers(by_task(direct="x"))
        fake.requests.clear()
        await app.ainvoke({"question": "Why?"}, context=Context(strategy="none", **settings))
        return fake.requests[0].get("max_completion_tokens")

    assert await limit(graph()) is None
    assert await limit(graph(), max_answer_tokens=70) == 70
    assert 700 < (await limit(graph(), max_total_tokens=1_000) or 0) < 1_000
    capped = graph(limits=Limits.parse({"max_answer_tokens": 50}))
    assert await limit(capped) == 50
    assert await limit(capped, max_answer_tokens=70) == 50
    assert await limit(capped, max_answer_tokens=20) == 20
    assert await limit(graph(), answers="short") == 100


async def test_a_long_answer_is_kept_whole(fake: FakeOpenAI) -> None:
    long = "It was lit in 1858 [1].\n\n" * 2_000
    fake.answers(by_task(answer=long))
    result = await graph().ainvoke({"question": QUESTION}, context=Context(strategy="single"))
    assert result["answer"] == long.strip()
    assert result["decision"]["cut"] is False


# Reasoning models


async def test_thoughts_reach_neither_answer_nor_state(fake: FakeOpenAI) -> None:
    thoughts = "It could be [2], secret.\n</think>\n\n"
    fake.answers(by_task(gate=f"{thoughts}[Yes]", answer=f"{thoughts}In 1858 [1]."))
    app = graph(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    stream = app.astream({"question": QUESTION}, thread, stream_mode="custom")
    events = [event async for event in stream]
    (begun,) = [each for each in events if each["event"] == "answering"]
    assert begun["thoughts"] is True  # the gate's reply has told
    state = (await app.aget_state(thread)).values
    assert state["answer"] == "In 1858 [1]."
    assert "secret" not in str(state)


def test_an_answer_may_speak_of_thoughts() -> None:
    text = "Models write `<think>` first.\n\nThen they close it with </think> and answer."
    assert chat.without_thoughts(f"<think>a</think>\n<think>b</think>{text}") == text


async def test_content_blocks_of_thoughts_are_left_out() -> None:
    blocks: Any = [{"type": "reasoning", "reasoning": "secret"}, {"type": "text", "text": "Oslo"}]

    class Thinking(TalkingModel):
        def _generate(self, messages: Any, *_: Any, **__: Any) -> Any:
            result = super()._generate(messages)
            result.generations[0].message.content = blocks
            return result

    model = Thinking(say=lambda *_: "")
    result = await graph(model=model).ainvoke({"question": "hello!"})
    assert result["answer"] == "Oslo" and "secret" not in str(result)


async def test_a_setting_that_a_model_does_not_take_is_named(fake: FakeOpenAI) -> None:
    model, context = TalkingModel(say=lambda *_: "Hi"), Context(temperature=0.5, seed=3)
    result = await graph(model=model).ainvoke({"question": "hello!"}, context=context)
    assert result["decision"]["warnings"] == ["the model does not take temperature, seed: left out"]


# Reading


def test_marks_in_sentences_lists_and_tables_are_kept_and_cited_once() -> None:
    reply = (
        "Skerrane Light was designed by Ilsabet Corrane [1][2]. It was lit in 1858. [1]\n\n"
        "- Corrane was born in Lissmere [2]\n\n| what | where |\n|---|---|\n"
        "| lighthouses | drawn by her [2] |\n\nSee `a[9]`."
    )
    found = read_full_answer(reply, EVIDENCE, QUESTION)
    assert (found.text, found.warnings) == (reply, [])
    assert [each["number"] for each in found.citations] == [1, 2]
    assert found.citations[0]["quote"] == "It was lit in 1858."
    assert found.citations[1]["quote"] == "Ilsabet Corrane was born in Lissmere."


GERMAN = "Der Leuchtturm wurde von einer Ingenieurin entworfen und brannte seit dem Jahr {} [1]."


@pytest.mark.parametrize(
    ("reply", "warnings"),
    [
        ("Lit in 1858 [1]. Whales sing [2].", ["[2] does not support “Whales sing.”"]),
        ("It cost 90,000 crowns.", ["no passage supports “It cost 90,000 crowns.”"]),
        ("The passages do not tell how tall it is [1].", ["[1] does not support “The pass"]),
        ("It was lit in 1858 [1]. You told me that Jonas Pell saw it in 1902.", []),  # was said
        ("Lit in 1858 [1][7]. `x [7]`", ["the model cited [7], which was not retrieved"]),
        (GERMAN.format(1858), []),  # another language is checked by its numbers
        (GERMAN.format(1911), ["no passage supports “Der Leuchtturm"]),
    ],
)
def test_a_warning_names_the_statement_that_nothing_supports(
    reply: str, warnings: list[str]
) -> None:
    found = read_full_answer(reply, EVIDENCE, QUESTION, "Jonas Pell saw it in 1902")
    assert found.text == reply.replace("[1][7]", "[1]")  # marks in code stay
    assert [said[: len(start)] for said, start in zip(found.warnings, warnings, strict=True)] == (
        warnings
    )


def test_a_full_answer_without_passages_is_left_as_it_is() -> None:
    text = "Answer: use `a[1]`, see [1] in the list:\n\n1. one"
    assert read_full_answer(text, []) == (text, True, [], [])
    assert read_full_answer("I don't know.", []).known is False
    assert read_full_answer("", []).warnings == ["the model gave an empty answer"]


# An app's own prompts

SAYS = ChatPromptTemplate.from_messages([("system", "Own words."), ("human", "Q: {question}")])


async def test_every_prompt_can_be_replaced(fake: FakeOpenAI) -> None:
    own: Any = {
        "gate": PromptTemplate.from_template("GATE {today} {question}"),
        "reason": PromptTemplate.from_template("REASON {passages} {question} {reasoning}"),
        "condense": PromptTemplate.from_template("CONDENSE {conversation} {question}"),
        "decompose": PromptTemplate.from_template("SPLIT {question} {limit}"),
        "answer": SAYS,
        "answer_with_passages": PromptTemplate.from_template("OVER {passages} {question}"),
    }
    replies = {
        "GATE": "[Yes]",
        "REASON": "So the answer is: Lissmere.",
        "CONDENSE": "Who drew it?",
        "SPLIT": "1. Who drew it?",
        "OVER": "Lissmere [1]",
        "Own": "Hi",
    }

    def script(messages: Any) -> Reply | str:
        first = messages[0]["content"].split()[0]
        return replies.get(first, Reply("Corrane"))

    fake.answers(script)
    app = build_graph(
        router=FixedRouter("C"), retriever=FixedRetriever(EVIDENCE), prompts=own, instructions="Hm."
    )
    past: Any = [("user", "Who?"), ("assistant", "She."), ("user", "And who drew it?")]
    await app.ainvoke({"messages": past}, context=Context(today="2026-01-02"))
    await app.ainvoke({"question": QUESTION}, context=Context(multihop="decompose"))
    await app.ainvoke({"question": "hello!"})
    seen = [prompt.split()[0] for prompt in fake.prompts]
    assert set(seen) >= {"CONDENSE", "GATE", "REASON", "SPLIT"}
    assert any(prompt.startswith("GATE 2026-01-02 ") for prompt in fake.prompts)
    over = [body["messages"] for body in fake.requests if "OVER" in str(body)]
    assert [each["role"] for each in over[0]] == ["system", "user"]  # instructions are never lost
    assert over[0][0]["content"] == "Hm."
    assert fake.requests[-1]["messages"] == [
        {"role": "system", "content": "Own words.\n\nHm."},
        {"role": "user", "content": "Q: hello!"},
    ]


@pytest.mark.parametrize(
    ("name", "template", "message"),
    [
        ("anwser", SAYS, "prompts has no prompt 'anwser'; use answer, answer_with_passages, gate"),
        ("answer", "Q: {question}", "prompts['answer'] is a str; use a LangChain prompt template"),
        ("answer_with_passages", SAYS, "it needs question, passages; it may have history, instr"),
        (
            "answer",
            PromptTemplate.from_template("{question} {topic}"),
            "prompts['answer'] has the fields question, topic; it needs question; it may have",
        ),
    ],
)
def test_a_prompt_with_wrong_fields_is_refused_when_the_graph_is_built(
    name: str, template: Any, message: str
) -> None:
    with pytest.raises(ValueError) as caught:
        build_graph(prompts={name: template})  # type: ignore[dict-item]
    assert message in str(caught.value)


async def test_passages_in_an_own_prompt_are_not_templates(fake: FakeOpenAI) -> None:
    fake.answers(lambda _: "x")
    braces = LIGHT | {"text": "Lit in {year} by {{keeper}} {instructions}."}
    own: Any = {"answer_with_passages": PromptTemplate.from_template("{passages} {question}")}
    app = build_graph(
        router=FixedRouter("B"), retriever=FixedRetriever([braces]), prompts=own, instructions="Hm."
    )
    await app.ainvoke({"question": "{oops}?"}, context=Context(strategy="single"))
    assert "Lit in {year} by {{keeper}} {instructions}. {oops}?" in fake.prompts[0]


def test_the_prompts_of_a_new_project_are_hopgate_s_own() -> None:
    space: dict[str, Any] = {"__file__": str(TEMPLATE / "graph.py")}
    exec((TEMPLATE / "graph.py").read_text(encoding="utf-8"), space)
    assert space["ANSWER"] == prompts.full("answer")
    assert space["ANSWER_WITH_PASSAGES"] == prompts.full("answer_with_passages")


# One call: the reply, or the wish to search


REPLY = Context(gate="reply", answers="full")


async def test_a_reply_without_a_search_takes_one_call(fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct="Rain falls softly."))
    result = await graph().ainvoke({"question": QUESTION}, context=REPLY)
    assert (result["answer"], result["decision"]["strategy"]) == ("Rain falls softly.", "none")
    assert (result["decision"]["gate"]["mode"], result["usage"]["llm_calls"]) == ("reply", 1)
    assert prompts.MAY_SEARCH in fake.prompts[0]


async def test_the_wish_to_search_is_followed(fake: FakeOpenAI) -> None:
    fake.says("[search]", "In 1858 [1].")
    result = await graph().ainvoke({"question": QUESTION}, context=REPLY)
    assert (result["answer"], result["usage"]["llm_calls"]) == ("In 1858 [1].", 2)
    assert result["decision"]["gate"]["reason"] == "the model asks for a search"
    assert prompts.MAY_SEARCH not in fake.prompts[1]
