"""A run of five hops, in this process or in a child process that a test may kill.

Router and retriever are test doubles; the model is the endpoint at OPENAI_BASE_URL.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from doubles import FixedRouter, by_task, hit
from fake_openai import Script
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph

from hopgate import Context, build_graph
from hopgate.graphs.checkpoints import serializer, sqlite_saver
from hopgate.retrievers.base import Hit

QUESTION = "In which harbour does the ship of the writer of the hymn of Veskary lie?"
THOUGHTS = [
    "The hymn of Veskary is called Grey Water.",
    "Grey Water was written by Odalie Fenmarch.",
    "Odalie Fenmarch sailed on the barque Merrin.",
    "The barque Merrin was sold to the town of Luthen.",
    "So the answer is: Luthen Marsk.",
]
ANSWER = "Luthen Marsk [1]"
QUERIES = [QUESTION, *THOUGHTS[:-1]]
FOUND: dict[str, list[Hit]] = {
    query: [
        hit(f"Source {number}.{each}", f"Luthen Marsk is mentioned on page {number}{each}.")
        for each in range(3)
    ]
    for number, query in enumerate(QUERIES)
}
CONTEXT = Context(model="openai:fake", max_hops=5, hop_k=3, max_passages=15)
CONFIG: Any = {"configurable": {"thread_id": "1"}}
SHOWN = ("answer", "citations", "decision", "hops", "usage")


def script() -> Script:
    """Return a script whose replies depend on the prompt alone, so that calls can be repeated."""

    def thought(prompt: str) -> str:
        return THOUGHTS[sum(each in prompt for each in THOUGHTS)]

    return by_task(gate="[Yes]", reason=thought, answer=ANSWER)


class RecordingRetriever:
    """A retriever that finds fixed passages for each query and logs each search in a file."""

    def __init__(self, searches: Path) -> None:
        self._searches = searches

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        with self._searches.open("a", encoding="utf-8") as out:
            out.writelines(f"{query}\n" for query in queries)
        return [FOUND[query][:k] for query in queries]


def searched(searches: Path) -> Counter[str]:
    return Counter(searches.read_text(encoding="utf-8").splitlines())


def build(
    saver: BaseCheckpointSaver[str] | None, searches: Path
) -> CompiledStateGraph[Any, Context, Any, Any]:
    return build_graph(saver, router=FixedRouter("C"), retriever=RecordingRetriever(searches))


async def run(graph: CompiledStateGraph[Any, Context, Any, Any], question: str | None) -> Any:
    """Ask a question, or resume if it is None; return the parts that can be compared."""
    given = None if question is None else {"question": question}
    config = CONFIG if graph.checkpointer else None
    result = await graph.ainvoke(given, config, context=CONTEXT)
    shown = {key: result[key] for key in SHOWN}
    return shown | {"usage": {key: n for key, n in result["usage"].items() if key != "ms"}}


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[BaseCheckpointSaver[str]]:
    """Open a database: the URI of a PostgreSQL server, or the path of an SQLite file."""
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    postgres = database.startswith("postgresql:")
    opening: Any = (
        AsyncPostgresSaver.from_conn_string(database, serde=serializer())
        if postgres
        else sqlite_saver(database)
    )
    async with opening as saver:
        await saver.setup()
        yield saver


def in_a_process(
    database: str, base_url: str, searches: Path, question: str | None, out: "Connection[Any, Any]"
) -> None:
    """Run to the end and send the result, unless the process is killed first."""
    os.environ |= {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "sk-test"}

    async def here() -> Any:
        async with opened(database) as saver:
            return await run(build(saver, searches), question)

    out.send(asyncio.run(here()))
