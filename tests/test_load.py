"""The load benchmark compares flows that do the same work."""

import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopgate import build_graph

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def load_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any, Any]]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("fixed_latency", "load_measures", "plain_flow")
    fixed_latency, load_measures, plain_flow = map(importlib.import_module, names)
    with fixed_latency.running(ms=1, cpu=None) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{address}/v1")
        yield address, load_measures, plain_flow


async def test_the_plain_flow_makes_the_same_calls_as_the_graph(
    load_modules: tuple[Any, Any, Any],
) -> None:
    address, load_measures, plain_flow = load_modules
    plain, own = await plain_flow.load_plain(), await plain_flow.load_own()
    graph = build_graph()
    settings = {"model": plain_flow.MODEL, "alpha": plain_flow.ALPHA, "answers": "short"}
    settings["gate"] = "ta-are"
    questions = load_measures.questions()[:8]

    async def hopgate(question: str) -> Any:
        return await graph.ainvoke({"question": question}, context=settings)

    calls, answers = [], []
    for ask in (
        lambda question: plain_flow.ask(plain, question),
        lambda question: plain_flow.ask(own, question),
        lambda question: plain_flow.graph.ainvoke({"question": question}),
        hopgate,
    ):
        before = load_measures.counted(address)
        answers.append([await ask(question) for question in questions])
        calls.append(load_measures.counted(address) - before)
    assert all(each == calls[0] for each in calls)
    assert set(calls[0]) == {"gate", "reason", "answer"}  # covers all strategies
    *bare, in_graph, adaptive = answers
    expected = [each["answer"] for each in adaptive]
    assert [each["answer"] for each in in_graph] == bare[0] == bare[1] == expected
    searches = Counter(len(each["hops"]) for each in adaptive)
    assert set(searches) == {0, 1, 2}
