"""Bytes that a five-hop run adds to a checkpointer's database: per hop, table and channel.

The databases are real: SQLite, and a PostgreSQL server started here. Model, router and retriever
are fakes: the model gives the replies below, the router always returns C, and each search finds the
next three passages of 100 words, cut from the sample collection.

Every column of every row that the run adds is counted. Databases compress, index and pad, so the
size on disk is given too, as the mean of twenty runs.

    python benchmarks/checkpoint_bytes.py [--json]
"""

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

from hopgate import Context, build_graph
from hopgate.graphs.checkpoints import serializer, sqlite_saver
from hopgate.nodes.prompts import templates as prompts
from hopgate.retrievers.base import Hit, passage_id
from hopgate.retrievers.sources import sample_path

HOPS = 5
HOP_K = 3
WORDS = 100
RUNS = 20
QUESTION = "Where was the designer of the lighthouse that the ferry Ondrith Maid passes last born?"
THOUGHTS = [
    "The ferry Ondrith Maid sails from Port Emmerel to Great Ulvane twice a day.",
    "The last lighthouse on the way from Port Emmerel to Great Ulvane is Skerrane Light.",
    "Skerrane Light was designed by Ilsabet Corrane and first lit in 1858.",
    "Ilsabet Corrane was the daughter of a merchant and learned surveying from an uncle.",
    "So the answer is: Lissmere.",
]
CONTEXT = Context(max_hops=HOPS, hop_k=HOP_K, max_passages=HOPS * HOP_K)


class FixedModel(BaseChatModel):
    """A fake chat model: it replies with Yes, then the thoughts in order, then an answer.

    `before_answer` is called before it replies with the answer.
    """

    before_answer: Callable[[], None]

    @property
    def _llm_type(self) -> str:
        return "fixed"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self._reply(messages)))])

    def _reply(self, messages: list[BaseMessage]) -> str:
        prompt = "\n".join(message.text for message in messages)
        if prompts.VANILLA in prompt:
            return "[Yes]"
        if prompts.REASON in prompt:
            return THOUGHTS[sum(thought in prompt for thought in THOUGHTS)]
        self.before_answer()
        return "Lissmere [2]"


class FixedRouter:
    """A fake router: always C."""

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Return the same probabilities for every question."""
        return [{"A": 0.1, "B": 0.1, "C": 0.8} for _ in questions]


class FixedRetriever:
    """A fake index: each search finds the next passages of a list.

    `before_search` is called at the start of each search.
    """

    def __init__(self, passages: list[Hit], before_search: Callable[[], None]) -> None:
        """Set the passages to find, in order."""
        self._left = list(passages)
        self._before_search = before_search

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the next `k` passages for each query."""
        self._before_search()
        found, self._left = self._left[:k], self._left[k:]
        return [found for _ in queries]


def passages() -> list[Hit]:
    """Cut the sample collection into passages of 100 words, as many as the run finds."""
    lines = (sample_path().parent / "passages.jsonl").read_text(encoding="utf-8").splitlines()
    words = " ".join(json.loads(line)["text"] for line in lines).split()
    texts = [" ".join(words[start : start + WORDS]) for start in range(0, len(words), WORDS)]
    return [
        Hit(id=passage_id("Sample", text), title=f"Passage {number}", text=text, score=0.5)
        for number, text in enumerate(texts[: HOPS * HOP_K], 1)
    ]


class Sqlite:
    """The checkpoints in an SQLite file."""

    tables = ("checkpoints", "writes")

    def __init__(self, folder: Path) -> None:
        """Set the file's folder."""
        self._file = folder / "checkpoints.sqlite"

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[BaseCheckpointSaver[str]]:
        """Open a checkpointer on the file."""
        async with sqlite_saver(self._file) as saver:
            await saver.setup()
            yield saver

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table."""
        with sqlite3.connect(self._file) as connection:
            connection.row_factory = sqlite3.Row
            yield from map(dict, connection.execute(f"SELECT * FROM {table}"))

    def disk(self) -> int:
        """Return the size of the file, after merging its write-ahead log."""
        with sqlite3.connect(self._file) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._file.stat().st_size


class Postgres:
    """The checkpoints in a PostgreSQL database."""

    tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")

    def __init__(self, uri: str) -> None:
        """Set the URI."""
        self._uri = uri

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[BaseCheckpointSaver[str]]:
        """Open a checkpointer and create its tables."""
        async with AsyncPostgresSaver.from_conn_string(self._uri, serde=serializer()) as saver:
            await saver.setup()
            yield saver

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table."""
        with psycopg.connect(self._uri) as connection:
            cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
            yield from cursor.execute(f"SELECT * FROM {table}")

    def disk(self) -> int:
        """Return the size of the tables with their indexes."""
        with psycopg.connect(self._uri) as connection:
            sizes = [f"pg_total_relation_size('{table}')" for table in self.tables]
            row = connection.execute(f"SELECT {' + '.join(sizes)}").fetchone()
        return int(row[0]) if row else 0


Database = Sqlite | Postgres


def size(value: Any) -> int:
    """Return the bytes of a column's value; JSON counts as text."""
    if value is None:
        return 0
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    return len(value) if isinstance(value, bytes) else len(str(value).encode())


def by_table(database: Database) -> Counter[str]:
    """Return the bytes in each table."""
    return Counter(
        {
            table: sum(size(value) for row in database.rows(table) for value in row.values())
            for table in database.tables
        }
    )


def by_channel(database: Database) -> Counter[str]:
    """Return the bytes of each channel's values, of versions, metadata and row keys."""
    found: Counter[str] = Counter()
    serde = serializer()
    for table in database.tables:
        for row in database.rows(table):
            parts: Counter[str] = Counter()
            if table == "checkpoints":
                checkpoint = row["checkpoint"]
                if isinstance(checkpoint, bytes):
                    checkpoint = serde.loads_typed((row["type"], checkpoint))
                for channel, value in checkpoint["channel_values"].items():
                    parts[channel] += len(serde.dumps_typed(value)[1])
                parts["(versions)"] = size(row["checkpoint"]) - sum(parts.values())
                parts["(metadata)"] = size(row["metadata"])
            else:
                parts[row["channel"]] = size(row["blob" if "blob" in row else "value"])
            parts["(keys)"] = sum(map(size, row.values())) - sum(parts.values())
            found += parts
    return found


async def run(
    saver: BaseCheckpointSaver[str], thread: str, on_step: Callable[[], None] = lambda: None
) -> None:
    """Ask the question once; `on_step` is called before each search and before the answer."""
    graph = build_graph(
        saver,
        model=FixedModel(before_answer=on_step),
        retriever=FixedRetriever(passages(), on_step),
        router=FixedRouter(),
    )
    config: Any = {"configurable": {"thread_id": thread}}
    result = await graph.ainvoke({"question": QUESTION}, config, context=CONTEXT, durability="sync")
    state = (await graph.aget_state(config)).values
    found = len(result["hops"]), len(state["evidence"])
    if found != (HOPS, HOPS * HOP_K):
        raise RuntimeError(f"the run took {found[0]} hops and found {found[1]} passages")


async def measure(database: Database) -> dict[str, Any]:
    """Count the bytes that one run adds."""
    totals: list[int] = []

    def record_total() -> None:
        totals.append(by_table(database).total())

    async with database.saver() as saver:
        tables, channels = by_table(database), by_channel(database)
        totals.append(tables.total())
        await run(saver, "measured", record_total)
        record_total()
        tables, channels = by_table(database) - tables, by_channel(database) - channels
    before, *hops, after = [later - earlier for earlier, later in pairwise(totals)]
    return {
        "total": tables.total(),
        "before the loop": before,
        "hops": hops,
        "after the loop": after,
        "tables": dict(tables),
        "channels": dict(channels.most_common()),
    }


async def on_disk(database: Database) -> int:
    """Return the bytes that a run takes on disk, as the mean of `RUNS`."""
    async with database.saver() as saver:
        await run(saver, "first")
        size = database.disk()
        for number in range(RUNS):
            await run(saver, f"{number}")
    return (database.disk() - size) // RUNS


@contextmanager
def databases() -> Iterator[dict[str, Database]]:
    """Create both databases, empty."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from postgres import server

    running: AbstractContextManager[str] = server()
    with tempfile.TemporaryDirectory() as folder, running as uri:
        yield {"SQLite": Sqlite(Path(folder)), "PostgreSQL": Postgres(uri)}


def table(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"  total  {found['total']:>8,} bytes ({found['disk']:,} on disk)"
    yield f"  before the loop {found['before the loop']:,}, after it {found['after the loop']:,}"
    yield "  hops " + ", ".join(f"{added:,}" for added in found["hops"])
    for group in ("tables", "channels"):
        yield f"  by {group[:-1]}"
        yield from (f"    {name:24}{added:>9,}" for name, added in found[group].items())


def main() -> None:
    """Measure both databases and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    with databases() as each:
        found = {name: asyncio.run(measure(database)) for name, database in each.items()}
        for name, database in each.items():
            found[name]["disk"] = asyncio.run(on_disk(database))
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        for name, measured in found.items():
            print(name, *table(measured), sep="\n")


if __name__ == "__main__":
    main()
