"""Time travel: listing the hops of a finished run, and continuing from one of them."""

import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import runs
from doubles import (
    CORRANE,
    FERRY,
    LIGHT,
    Clock,
    FixedRetriever,
    FixedRouter,
    FreshRetriever,
    TalkingModel,
    by_task,
)
from fake_openai import FakeOpenAI
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph

from hopgate import Context, build_graph
from hopgate.graphs.history import HopPoint, fork, hops

OTHER = "the owner of the barque Merrin"
DOCS = Path(__file__).parent.parent / "docs" / "replay.md"


@pytest.fixture
async def saver(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[BaseCheckpointSaver[str]]:
    kind = getattr(request, "param", "memory")
    if kind == "memory":
        yield InMemorySaver()
        return
    file = str(tmp_path / "t.sqlite")
    database = file if kind == "sqlite" else request.getfixturevalue("postgres")
    async with runs.opened(database) as opened:
        yield opened
        await opened.adelete_thread("1")


every_saver = pytest.mark.parametrize("saver", ["memory", "sqlite", "postgres"], indirect=True)


@pytest.fixture
def searches(tmp_path: Path) -> Path:
    return tmp_path / "searches"


@pytest.fixture
async def app(
    fake: FakeOpenAI, saver: BaseCheckpointSaver[str], searches: Path
) -> CompiledStateGraph[Any, Context, Any, Any]:
    """The graph, after a run of five hops."""
    fake.answers(runs.script())
    graph = runs.build(saver, searches)
    await runs.run(graph, runs.QUESTION)
    fake.requests.clear()
    searches.unlink()
    return graph


async def resume(app: CompiledStateGraph[Any, Context, Any, Any], branch: Any) -> Any:
    return await app.ainvoke(None, branch, context=runs.CONTEXT)


@every_saver
async def test_the_hops_of_a_finished_run_are_listed_with_their_checkpoints(app: Any) -> None:
    points = await hops(app, runs.CONFIG)
    assert [point.number for point in points] == [1, 2, 3, 4, 5]
    assert [point.hop["query"] for point in points] == runs.QUERIES
    assert [point.hop["thought"] for point in points] == runs.THOUGHTS
    assert [len(point.evidence) for point in points] == [0, 3, 6, 9, 12]
    for point in points:
        state = await app.aget_state(point.checkpoint)
        assert state.next == ("retrieve",)
        assert len(state.values["hops"]) == point.number - 1


@pytest.mark.parametrize("number", [1, 3, 5])
async def test_a_fork_without_changes_repeats_only_the_later_steps(
    app: Any, fake: FakeOpenAI, searches: Path, number: int
) -> None:
    before = (await app.aget_state(runs.CONFIG)).values
    point = (await hops(app, runs.CONFIG))[number - 1]
    result = await resume(app, await fork(app, point))
    assert runs.searched(searches) == Counter(runs.QUERIES[number - 1 :])
    assert len(fake.requests) == len(runs.QUERIES) - number + 2  # thoughts and the answer
    for key in ("answer", "citations", "hops", "decision"):
        assert result[key] == before[key]
    for key in ("retrieval_steps", "llm_calls", "prompt_tokens"):
        assert result["usage"][key] == before["usage"][key]


async def test_a_fork_can_change_the_query_of_a_hop(
    app: Any, fake: FakeOpenAI, searches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runs.FOUND, OTHER, [LIGHT])
    third = (await hops(app, runs.CONFIG))[2]
    result = await resume(app, await fork(app, third, query=OTHER))
    queries = [hop["query"] for hop in result["hops"]]
    assert queries == [*runs.QUERIES[:2], OTHER, *runs.QUERIES[3:]]
    assert runs.searched(searches) == Counter(queries[2:])
    assert LIGHT["text"] in fake.prompts[0]
    state = (await app.aget_state(runs.CONFIG)).values
    assert len(state["evidence"]) == 4 * 3 + 1
    assert state["next_query"] == ""


async def test_a_fork_can_change_the_evidence_before_a_hop(app: Any, fake: FakeOpenAI) -> None:
    third = (await hops(app, runs.CONFIG))[2]
    result = await resume(app, await fork(app, third, evidence=[LIGHT]))
    removed = third.evidence[0]["title"]
    assert all(LIGHT["text"] in prompt and removed not in prompt for prompt in fake.prompts)
    assert len(result["hops"]) == 5
    state = (await app.aget_state(runs.CONFIG)).values
    assert state["evidence"][-1] == LIGHT
    assert len(state["evidence"]) == 3 * 3 + 1


@pytest.mark.parametrize(("strategy", "searched"), [("none", 0), ("single", 1)])
async def test_a_fork_can_leave_the_loop(
    app: Any, fake: FakeOpenAI, searches: Path, strategy: Any, searched: int
) -> None:
    third = (await hops(app, runs.CONFIG))[2]
    result = await resume(app, await fork(app, third, strategy=strategy))
    assert result["decision"]["strategy"] == strategy
    assert result["decision"]["stop_reason"] is None
    assert result["usage"]["retrieval_steps"] == 2 + searched
    assert len(result["hops"]) == 2
    assert len(fake.requests) == 1
    assert third.evidence[0]["title"] in fake.prompts[0]
    assert await hops(app, runs.CONFIG) == []  # the newest run has no loop


@every_saver
async def test_the_original_run_is_unchanged_and_forks_can_be_forked(app: Any) -> None:
    old = await app.aget_state(runs.CONFIG)
    third = (await hops(app, runs.CONFIG))[2]
    await resume(app, await fork(app, third, evidence=[LIGHT]))
    (own, *_) = forked = await hops(app, runs.CONFIG)
    assert [point.number for point in forked] == [3, 4, 5]
    assert own.evidence == [LIGHT]
    assert [point.number for point in await hops(app, old.config)] == [1, 2, 3, 4, 5]
    assert (await app.aget_state(old.config)).values == old.values
    await resume(app, await fork(app, forked[-1], evidence=[CORRANE]))
    evidence = (await app.aget_state(runs.CONFIG)).values["evidence"]
    assert len(evidence) == 3 + 1


async def test_an_incomplete_passage_is_refused(app: Any) -> None:
    third: HopPoint = (await hops(app, runs.CONFIG))[2]
    incomplete: Any = {"id": "1", "title": "a", "text": "b"}
    with pytest.raises(ValueError, match=r"evidence\.0\.score is missing; add it"):
        await fork(app, third, evidence=[incomplete])


async def test_a_turn_without_the_loop_lists_no_hops_of_an_earlier_turn() -> None:
    graph = talking()
    assert await hops(graph, runs.CONFIG) == []
    asked: Any = {"question": "Why?"}
    for stop in ({"interrupt_after": ["route"]}, {"interrupt_before": ["multihop"]}):
        await graph.ainvoke(asked, runs.CONFIG, context=runs.CONTEXT, **stop)  # type: ignore[arg-type]
        assert await hops(graph, runs.CONFIG) == []  # the loop has not started
    await graph.ainvoke({"question": "Why?"}, runs.CONFIG, context=Context(strategy="multi"))
    looped = (await graph.aget_state(runs.CONFIG)).config
    context = Context(strategy="single")
    await graph.ainvoke({"question": "How?"}, runs.CONFIG, context=context)
    assert await hops(graph, runs.CONFIG) == []
    assert len(await hops(graph, looped)) == 4


SUB_QUESTIONS = "1. Who drew it?\n2. How old is it?\n3. Where was {1} born?"
REPLIES = {"Who drew": "Corrane", "How old": "I don't know", "Split the": SUB_QUESTIONS}


def talking(clock: Clock | None = None, seconds: float = 0) -> CompiledStateGraph[Any, Any]:
    """Return a graph whose model replies from `REPLIES` and takes `seconds` for each call."""

    def say(number: int, prompt: str) -> str:
        if clock:
            clock.advance(seconds)
        known = (reply for part, reply in REPLIES.items() if part in prompt)
        return next(known, f"Fact {number} is new.")

    return build_graph(
        InMemorySaver(),
        model=TalkingModel(say=say),
        retriever=FreshRetriever(),
        router=FixedRouter("C"),
        clock=clock,
    )


@pytest.mark.parametrize("number", [1, 3])
async def test_a_fork_continues_with_the_sub_questions(number: int) -> None:
    graph, context = talking(), Context(strategy="multi", multihop="decompose")
    before = await graph.ainvoke({"question": "Why?"}, runs.CONFIG, context=context)
    assert [hop["thought"] for hop in before["hops"]][:2] == ["Corrane", ""]
    point = (await hops(graph, runs.CONFIG))[number - 1]
    after = await graph.ainvoke(None, await fork(graph, point), context=context)
    assert [hop["query"] for hop in after["hops"]] == [hop["query"] for hop in before["hops"]]
    assert [hop["thought"] for hop in after["hops"]][:2] == ["Corrane", ""]
    assert after["decision"]["stop_reason"] == "answered"
    for key in ("retrieval_steps", "llm_calls"):
        assert after["usage"][key] == before["usage"][key]


async def test_after_a_changed_query_the_sub_questions_continue() -> None:
    graph, context = talking(), Context(strategy="multi", multihop="decompose")
    await graph.ainvoke({"question": "Why?"}, runs.CONFIG, context=context)
    first = (await hops(graph, runs.CONFIG))[0]
    after = await graph.ainvoke(None, await fork(graph, first, query="the artist"), context=context)
    queries = [hop["query"] for hop in after["hops"]]
    answer = after["hops"][0]["thought"]
    assert queries == ["the artist", "How old is it?", f"Where was {answer} born?"]


async def test_a_fork_with_thoughts_continues_as_ircot_whatever_the_context_says() -> None:
    graph, context = talking(), Context(strategy="multi", multihop="decompose")
    await graph.ainvoke({"question": "Why?"}, runs.CONFIG, context=Context(strategy="multi"))
    third = (await hops(graph, runs.CONFIG))[2]
    result = await graph.ainvoke(None, await fork(graph, third), context=context)
    assert [hop["query"] for hop in result["hops"]][2] == third.hop["query"]
    assert (await graph.aget_state(runs.CONFIG)).values["sub_questions"] == []


@pytest.mark.parametrize(("multihop", "seconds"), [("ircot", 21), ("decompose", 34)])
async def test_a_deadline_counts_without_pauses_by_the_apps_clock(
    multihop: Any, seconds: int
) -> None:
    clock = Clock()
    graph = talking(clock, seconds=10)
    context = Context(strategy="multi", multihop=multihop, max_seconds=45)
    await graph.ainvoke({"question": "Why?"}, runs.CONFIG, context=context)
    first = (await hops(graph, runs.CONFIG))[0]
    clock.advance(1_000)
    branch = await fork(graph, first)
    clock.advance(1_000)
    short = Context(strategy="multi", multihop=multihop, max_seconds=seconds)
    result = await graph.ainvoke(None, branch, context=short)
    assert result["decision"]["stop_reason"] == "deadline"
    assert len(result["hops"]) == 2
    longer = await graph.ainvoke(None, branch, context=context)
    assert len(longer["hops"]) > 2


@every_saver
async def test_the_documented_example_runs(
    fake: FakeOpenAI, saver: BaseCheckpointSaver[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fact = "Skerrane Light was designed by Ilsabet Corrane."

    def thought(prompt: str) -> str:
        return "So the answer is: Lissmere." if f"Reasoning: {fact}" in prompt else fact

    fake.answers(by_task(reason=thought, answer="Lissmere [1]"))
    retriever = FixedRetriever([LIGHT], [CORRANE], [FERRY])
    code = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
    code = code.replace("build_graph(checkpointer)", "build_graph(checkpointer, retriever=source)")
    names: dict[str, Any] = {"checkpointer": saver, "source": retriever}
    exec(f"async def example():\n{indent(code, '    ')}\n    return locals()", names)
    results = await names["example"]()
    assert capsys.readouterr().out.startswith("1 Where was the designer")
    assert results["result"]["answer"] == "Lissmere [1]"
    assert retriever.queries[2:4] == ["Ilsabet Corrane, birthplace", fact]
    assert results["other_evidence"]["answer"] == "Lissmere [1]"
    assert results["other_route"]["decision"]["strategy"] == "none"
    assert len(results["other_route"]["hops"]) == 1
