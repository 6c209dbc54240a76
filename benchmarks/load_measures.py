"""What a load on the graph is measured with: users that ask, their times, CPU and memory."""

import asyncio
import json
import random
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sample_questions import read_questions

Ask = Callable[[str], Awaitable[Any]]
ERROR_CHARS = 400


def questions() -> list[str]:
    """The sample collection's questions, in an order that mixes the strategies."""
    found = [str(row["question"]) for row in read_questions()]
    random.Random(0).shuffle(found)
    return found


def endless(texts: list[str]) -> Iterator[str]:
    """Go round and round."""
    while True:
        yield from texts


@dataclass
class Tally:
    """What users saw: seconds of each answer, errors with their seconds, and what it took."""

    answered: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        """Count both together, one after the other."""
        return Tally(
            self.answered + other.answered,
            self.failed + other.failed,
            self.errors + other.errors,
            self.wall + other.wall,
            self.cpu + other.cpu,
        )

    def report(self) -> dict[str, Any]:
        """Lay it out; milliseconds are of wall time, `cpu_ms` of all threads, per question."""
        asked = len(self.answered) + len(self.failed)
        found: dict[str, Any] = {"asked": asked, "errors": len(self.failed)}
        if self.wall:
            found["answers_per_s"] = round(len(self.answered) / self.wall, 2)
        if self.answered:
            found |= milliseconds(self.answered)
        if self.cpu:
            found["cpu_ms"] = round(self.cpu / asked * 1000, 2)
        if self.failed:
            found["failed_after_s"] = [round(min(self.failed), 1), round(max(self.failed), 1)]
            found["messages"] = dict(self.errors)
        return found


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Mean and percentiles."""
    ordered = sorted(seconds)
    marks = {f"p{p}_ms": ordered[round(p / 100 * (len(ordered) - 1))] for p in (50, 95, 99)}
    return {
        name: round(value * 1000, 1)
        for name, value in {"mean_ms": statistics.mean(ordered), **marks}.items()
    }


async def load(ask: Ask, texts: Iterable[str], users: int, tally: Tally | None = None) -> Tally:
    """Let users ask, each its next question when the last is answered.

    Args:
        ask: Asks one question.
        texts: Handed out one by one, until there are none.
        users: How many ask at once.
        tally: Where to count; a new one by default.
    """
    tally, left = tally or Tally(), iter(texts)

    async def user() -> None:
        for text in left:
            began = time.perf_counter()
            try:
                await ask(text)
            except Exception as error:
                tally.failed.append(time.perf_counter() - began)
                tally.errors[f"{type(error).__name__}: {error}"[:ERROR_CHARS]] += 1
            else:
                tally.answered.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    tally.wall = time.perf_counter() - began
    return tally


@dataclass(frozen=True)
class Watch:
    """Where the counters are read: of the measured process, and of the fake model."""

    cpu: Callable[[], float]
    calls: Callable[[], Counter[str]]


async def in_turns(
    sides: dict[str, Ask], users: int, count: int, rounds: int, watch: Watch
) -> dict[str, Any]:
    """Put the same load on several sides in turns, after one that does not count.

    Args:
        sides: What each asks with.
        users: How many ask at once.
        count: Questions a turn.
        rounds: Turns of each side; who is first changes.
        watch: Where the counters are read.
    """
    turns: dict[str, list[Tally]] = {name: [] for name in sides}
    calls = {name: Counter[str]() for name in sides}
    texts = {name: endless(questions()) for name in sides}
    for turn in range(-1, rounds):
        for name in rotated(list(sides), turn):
            before, spent = watch.calls(), watch.cpu()
            tally = await load(
                sides[name], islice(texts[name], users if turn < 0 else count), users
            )
            tally.cpu = watch.cpu() - spent
            if turn >= 0:
                turns[name].append(tally)
                calls[name] += watch.calls() - before
    return {name: summary(turns[name], calls[name]) for name in sides}


def rotated(names: list[str], by: int) -> list[str]:
    """Begin with another one."""
    at = by % len(names)
    return names[at:] + names[:at]


def summary(turns: list[Tally], calls: Counter[str]) -> dict[str, Any]:
    """Lay out one side's turns together, and the figures of each that tell how they vary."""
    reports = [turn.report() for turn in turns]
    varying = ("answers_per_s", "p50_ms", "cpu_ms")
    return sum(turns, Tally()).report() | {
        "model_calls": dict(sorted(calls.items())),
        "turns": {name: [report.get(name) for report in reports] for name in varying},
    }


def counted(address: str) -> Counter[str]:
    """Ask the fake model what it has answered so far."""
    with urllib.request.urlopen(f"{address}/counts") as response:
        return Counter(json.load(response))


def slope(points: list[tuple[int, float]]) -> float:
    """MiB per 1,000 requests over the second half of the points, by least squares."""
    half = points[len(points) // 2 :]
    fit = statistics.linear_regression([x / 1000 for x, _ in half], [y for _, y in half])
    return round(fit.slope, 2)
