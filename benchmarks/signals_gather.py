"""What signals.py asks about each question, once: the draft, P(Yes), and the first search."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import track

from hopgate.evaluation.measuring.datasets import Example, read_examples
from hopgate.evaluation.measuring.journal import Journal
from hopgate.models import chat
from hopgate.models.local import PARALLEL_REQUESTS
from hopgate.nodes import gate
from hopgate.nodes.answers.reading import read_answer
from hopgate.nodes.answers.short import prompt_answer
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.texts.support import overlap, terms
from hopgate.retrievers.base import Hit
from hopgate.retrievers.index.reader import Index, load_index

DEPTH = 10
TODAY = date(2026, 11, 23)  # in the gate's prompt

Row = dict[str, Any]
Measure = Callable[[str], Awaitable[Row]]


def gathered(questions: Path, index: Path, journal: Path) -> dict[str, Row]:
    """Return `draft`, `confidence` and `search` of each question, by id; a journal keeps them.

    One kind after the other, so that the model reads the demonstrations of each prompt only once.
    """
    examples = read_examples(questions)
    opened = load_index(index)
    kinds = {"search": partial(_search, index=opened), "draft": _draft, "confidence": _confidence}
    settings = {"model": chat.LOCAL, "passages": opened.manifest["passages"], "depth": DEPTH}
    with Journal(journal, settings) as kept:
        for kind, measure in kinds.items():
            asyncio.run(_measure(kind, measure, examples, kept))
        return {
            each.id: {kind: kept.done[f"{kind}:{each.id}"] for kind in kinds} for each in examples
        }


async def _measure(kind: str, measure: Measure, examples: Sequence[Example], kept: Journal) -> None:
    left = [each for each in examples if f"{kind}:{each.id}" not in kept.done]
    slots = asyncio.Semaphore(PARALLEL_REQUESTS)

    async def one(example: Example) -> None:
        async with slots:
            row = await measure(example.question)
        kept.append({"id": f"{kind}:{example.id}", **row})

    asked = asyncio.as_completed(map(one, left))
    for each in track(asked, description=f"{kept.path.name} {kind}", total=len(left)):
        await each


async def _draft(question: str) -> Row:
    """Answer directly, as the gate `draft` does; `tokens` has p1, p2 and the entropy of each."""
    runtime = NodeRuntime(Context(model=chat.LOCAL))
    started = time.perf_counter()
    completion = await prompt_answer(question, [], runtime, logprobs=True, streamed=False)
    return {
        "reply": completion.text,
        "known": read_answer(completion.text, []).known,
        "uncertainty": gate.uncertainty(completion) if completion.logprobs else 1.0,
        "tokens": [_token(position) for position in completion.logprobs],
        "cost": _cost(runtime, started),
    }


def _token(position: Mapping[str, float]) -> list[float]:
    masses = sorted([*map(math.exp, position.values()), 0.0], reverse=True)
    entropy = -sum(p / sum(masses) * math.log(p / sum(masses)) for p in masses if p > 0)
    return [round(each, 6) for each in (*masses[:2], entropy)]


async def _confidence(question: str) -> Row:
    runtime = NodeRuntime(Context(model=chat.LOCAL, gate="confidence", today=TODAY))
    started = time.perf_counter()
    found = await gate.decide(question, runtime)
    return {"p_yes": found["p_yes"], "cost": _cost(runtime, started)}


def _cost(runtime: NodeRuntime, started: float) -> dict[str, float]:
    usage = runtime.usage
    return {
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
        "ms": round(1000 * (time.perf_counter() - started), 1),
    }


async def _search(question: str, index: Index) -> Row:
    started = time.perf_counter()
    found = {mode: index.search([question], DEPTH, mode)[0] for mode in ("bm25", "dense", "hybrid")}
    ms = 1000 * (time.perf_counter() - started)
    language = index.manifest["language"]
    words = terms(question, language)
    return {
        **{
            mode: [[hit["id"], round(hit["score"], 5)] for hit in hits]
            for mode, hits in found.items()
        },
        "support": [round(overlap(words, _text(hit), language), 4) for hit in found["hybrid"]],
        "ms": round(ms, 1),
    }


def _text(hit: Hit) -> str:
    return f"{hit['title']} {hit['text']}"
