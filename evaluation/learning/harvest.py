"""`hopgate harvest`: questions that users asked, out of a store of threads.

Questions whose answers were doubted, by hopgate or by the user, are likelier to be drawn: a model
and a router learn most from them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from heapq import nlargest
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.messages import convert_to_messages

from hopgate.common.files import atomic_write, json_line, shown
from hopgate.evaluation.learning.privacy import personal
from hopgate.evaluation.learning.threads import Snapshot, Threads, open_threads
from hopgate.evaluation.measuring.datasets import question_id
from hopgate.evaluation.reports.output import check_folder
from hopgate.nodes.run.feedback import Feedback, check_answer
from hopgate.nodes.texts.message import kind_of
from hopgate.nodes.texts.text import check_question, normalise

if TYPE_CHECKING:
    from hopgate.evaluation.measuring.runner import Progress

WEIGHTS = {
    "corrected": 8,
    "thumbs-down": 6,
    "escalated": 3,
    "doubt": 2,
    "thumbs-up": 1,
    "random": 1,
}
"""How much likelier than without a signal a question is drawn; of several signals, the largest.

`corrected`: the user gave the right answer. `random`: no signal.
"""
UNREADABLE = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that a stored row may raise if it is not a state of hopgate's."""

Row = dict[str, Any]


def harvest(
    source: str,
    out: Path,
    *,
    size: int,
    since: datetime | None = None,
    exclude: Sequence[str] = (),
    overwrite: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Draw questions from a store and write them into a file, which only its owner can read.

    Args:
        source: See `hopgate.evaluation.learning.threads.open_threads`.
        out: JSONL to write: `id`, `question` (understandable on its own), `signals` (of `WEIGHTS`),
            `asked` (a date), and `answers` where the user gave the right one. Any first part of it
            is drawn like the whole.
        size: How many questions at most. The same store and size give the same questions.
        since: Leave out questions that were asked before.
        exclude: Regular expressions; questions that match one are left out.
        overwrite: Replace `out`.
        progress: Called with the stage, the threads read, and all of them.

    Returns:
        `out`, `threads`, `questions` (read), `left_out` (by reason), `rows` (written), `signals`
        (of the rows) and `answers` (rows that have one).

    Raises:
        ValueError: The source, a pattern or `out` cannot be used.
        RuntimeError: The source does not answer, or there is no question.
        OSError: `out` cannot be written.
    """
    if out.is_dir() or (out.exists() and not overwrite):
        raise ValueError(f"--out {out} exists; name another file, or use --overwrite")
    if out.exists() and os.path.exists(source) and out.samefile(source):
        raise ValueError(f"--out {out} is the store itself; name another file")
    check_folder(out.parent)
    found = Harvest(since, [_pattern(each) for each in exclude])
    asyncio.run(_read(source, found, progress))
    # Efraimidis and Spirakis, 2006: u^(1/weight) with u from the id, so that order has no effect.
    rows = nlargest(size, found.rows.values(), key=_key)
    if not rows:
        left_out = ", ".join(f"{count} {name}" for name, count in found.left_out.items())
        raise RuntimeError(
            f"no questions found, nothing is written: {found.threads} threads read, "
            f"{found.questions} questions, left out: {left_out or 'none'}"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as file:
        os.chmod(file.name, 0o600)
        file.writelines(map(json_line, rows))
    return {
        "out": str(out),
        "threads": found.threads,
        "questions": found.questions,
        "left_out": dict(found.left_out),
        "rows": len(rows),
        "signals": dict(Counter(signal for row in rows for signal in row["signals"])),
        "answers": sum("answers" in row for row in rows),
    }


async def _read(source: str, found: Harvest, progress: Progress) -> None:
    async with open_threads(source) as threads:
        for thread in threads.ids:
            await found.read(threads, thread)
            progress("reading threads", found.threads, len(threads.ids))


def _pattern(given: str) -> re.Pattern[str]:
    try:
        return re.compile(given, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"--exclude {shown(given)} is not a regular expression: {error}"
        ) from error


class Harvest:
    """The questions of the threads read so far.

    Attributes:
        threads: How many were read.
        questions: How many were in them.
        left_out: How many of these can never be drawn, by reason.
        rows: The others, by id.
    """

    def __init__(self, since: datetime | None, exclude: Sequence[re.Pattern[str]]) -> None:
        """Start with no thread."""
        self.threads = self.questions = 0
        self.left_out: Counter[str] = Counter()
        self.rows: dict[str, Row] = {}
        self._since, self._exclude = since, exclude

    async def read(self, threads: Threads, thread: str) -> None:
        """Read one thread."""
        self.threads += 1
        said: dict[str, Feedback] | None = None
        try:
            async for turn in turns(threads.states(thread)):
                said = turn.values.get("feedback", {}) if said is None else said  # the newest
                if self._since and turn.at < self._since:
                    break
                self.questions += 1
                self._add(turn, said)
        except UNREADABLE:
            self.left_out["unreadable thread"] += 1

    def _add(self, turn: Snapshot, said: Mapping[str, Feedback]) -> None:
        if not turn.values.get("answer"):
            self.left_out["unanswered"] += 1
            return
        try:
            row = make_row(turn, said)
        except ValueError:
            self.left_out["empty or too long"] += 1
            return
        texts = (row["question"], *row.get("answers", ()))
        if hidden := next(filter(None, (personal(each, self._exclude) for each in texts)), None):
            self.left_out[hidden] += 1
            return
        held = self.rows.get(row["id"])
        self.rows[row["id"]] = merged(held, row) if held else row


async def turns(states: AsyncIterator[Snapshot]) -> AsyncIterator[Snapshot]:
    """Yield the state after each turn, newest first, `at` its start; of forks, the newest."""
    seen: set[str] = set()
    newest: Snapshot | None = None
    for_message = None
    async for state in states:
        message = state.values.get("message_id")
        if newest and message == for_message:
            newest = newest._replace(at=state.at)
            continue
        if newest:
            yield newest
        newest, for_message = None, message
        if message and message not in seen:
            seen.add(message)
            newest = state
    if newest:
        yield newest


def make_row(turn: Snapshot, said: Mapping[str, Feedback]) -> Row:
    """Return the row of a question; see `harvest`.

    Raises:
        ValueError: The question or its right answer is empty or too long, or the message was not a
            question.
    """
    if kind_of(turn.values.get("decision")) != "question":
        raise ValueError("the message asks for no facts")
    question = check_question(turn.values["standalone"])
    if not normalise(question):
        raise ValueError("the question has no words")
    given = said.get(_answer_id(turn.values))
    answer = check_answer(given["answer"]) if given and given["answer"] else None
    return {
        "id": question_id(question),
        "question": question,
        "signals": _signals(turn.values, given, answer),
        "asked": turn.at.date().isoformat(),
        **({"answers": [answer]} if answer else {}),
    }


def _answer_id(values: Mapping[str, Any]) -> str:
    """Return the id of the message that answers a turn's question."""
    messages = convert_to_messages(values["messages"])
    later = dropwhile(lambda each: each.id != values["message_id"], messages)
    return str(next((each.id for each in later if each.type == "ai"), ""))


def _signals(values: Mapping[str, Any], given: Feedback | None, answer: str | None) -> list[str]:
    decision = values["decision"]
    found = {
        "corrected": bool(answer),
        "thumbs-down": given is not None and given["thumbs"] == "down",
        "thumbs-up": given is not None and given["thumbs"] == "up",
        "escalated": bool(decision.get("escalated")),
        "doubt": bool(decision.get("doubt")),
    }
    return [name for name in WEIGHTS if found.get(name)] or ["random"]


def _key(row: Row) -> float:
    digest = sha256(f"harvest {row['id']}".encode()).digest()[:7]
    even = (int.from_bytes(digest) + 1) / 2**56
    return float(even ** (1 / max(WEIGHTS[signal] for signal in row["signals"])))


def merged(one: Row, other: Row) -> Row:
    """Return a row of two for the same question: all signals, and the newer one's answer."""
    older, newer = sorted((one, other), key=lambda each: each["asked"])
    signals = [
        name for name in WEIGHTS if name in {*one["signals"], *other["signals"]} - {"random"}
    ]
    return {**older, **newer, "signals": signals or ["random"]}
