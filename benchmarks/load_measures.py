"""Measure a load on the graph: concurrent users, latencies, CPU and memory."""

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
    """Return the sample collection's questions, with the strategies mixed."""
    found = [str(row["question"]) for row in read_questions()]
    random.Random(0).shuffle(found)
    return found


def endless(texts: list[str]) -> Iterator[str]:
    """Yield the texts again and again."""
    while True:
        yield from texts


@dataclass
class Tally:
    """Latencies of answers and errors in seconds, the errors, and the wall and CPU time."""

    answered: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    wall: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        """Add two tallies that were measured one after the other."""
        return Tally(
            self.answered + other.answered,
            self.failed + other.failed,
            self.errors + other.errors,
            self.wall + other.wall,
            self.cpu + other.cpu,
        )

    def report(self) -> dict[str, Any]:
        """Return the figures; milliseconds are wall time, `cpu_ms` is CPU time per question."""
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
    """Return the mean and the percentiles in milliseconds."""
    ordered = sorted(seconds)
    marks = {f"p{p}_ms": ordered[round(p / 100 * (len(ordered) - 1))] for p in (50, 95, 99)}
    return {
        name: round(value * 1000, 1)
        for name, value in {"mean_ms": statistics.mean(ordered), **marks}.items()
    }


async def load(ask: Ask, texts: Iterable[str], users: int, tally: Tally | None = None) -> Tally:
    """Run concurrent users, each of whom asks one question after the other.

    Args:
        ask: Asks one question.
        texts: Questions, shared by the users.
        users: Number of concurrent users.
        tally: Tally to add to; a new one by default.
    """
    tally, left = tally or Tally(), iter(texts)

    async def user() -> None:
        for text in left:
            started = time.perf_counter()
            try:
                await ask(text)
            except Exception as error:
                tally.failed.append(time.perf_counter() - started)
                tally.errors[f"{type(error).__name__}: {error}"[:ERROR_CHARS]] += 1
            else:
                tally.answered.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(users)))
    tally.wall = time.perf_counter() - started
    return tally


@dataclass(frozen=True)
class Watch:
    """Functions that read the CPU time of the measured process and the calls of the fake model."""

    cpu: Callable[[], float]
    calls: Callable[[], Counter[str]]


async def in_turns(
    sides: dict[str, Ask], users: int, count: int, rounds: int, watch: Watch
) -> dict[str, Any]:
    """Put the same load on several sides in turn, after a warm-up turn.

    Args:
        sides: Function that asks a question, for each side.
        users: Number of concurrent users.
        count: Questions per turn.
        rounds: Turns of each side; the side that goes first changes.
        watch: Reads the counters.
    """
    turns: dict[str, list[Tally]] = {name: [] for name in sides}
    calls = {name: Counter[str]() for name in sides}
    texts = {name: endless(questions()) for name in sides}
    for turn in range(-1, rounds):
        for name in rotated(list(sides), turn):
            calls_before, cpu_before = watch.calls(), watch.cpu()
            tally = await load(
                sides[name], islice(texts[name], users if turn < 0 else count), users
            )
            tally.cpu = watch.cpu() - cpu_before
            if turn >= 0:
                turns[name].append(tally)
                calls[name] += watch.calls() - calls_before
    return {name: summary(turns[name], calls[name]) for name in sides}


def rotated(names: list[str], by: int) -> list[str]:
    """Return the names, rotated."""
    at = by % len(names)
    return names[at:] + names[:at]


def summary(turns: list[Tally], calls: Counter[str]) -> dict[str, Any]:
    """Return the figures of one side, in total and by turn."""
    reports = [turn.report() for turn in turns]
    varying = ("answers_per_s", "p50_ms", "cpu_ms")
    return sum(turns, Tally()).report() | {
        "model_calls": dict(sorted(calls.items())),
        "turns": {name: [report.get(name) for report in reports] for name in varying},
    }


def counted(address: str) -> Counter[str]:
    """Return the number of calls of each kind that the fake model has answered."""
    with urllib.request.urlopen(f"{address}/counts") as response:
        return Counter(json.load(response))


def slope(points: list[tuple[int, float]]) -> float:
    """Return MiB per 1,000 requests over the second half of the points, by least squares."""
    half = points[len(points) // 2 :]
    fit = statistics.linear_regression([x / 1000 for x, _ in half], [y for _, y in half])
    return round(fit.slope, 2)
