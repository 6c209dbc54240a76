"""The two LangGraph features that may change; a failure says what to do."""

import asyncio
import operator
from typing import Annotated, Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from hopgate.nodes.run.internals import SYNC_DURABILITY, delta_channel

THREAD: Any = {"configurable": {"thread_id": "1"}}


class SlowSaver(InMemorySaver):
    """A slow saver that logs when it has stored a checkpoint."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        await asyncio.sleep(0.05)
        self.log.append(f"stored step {metadata['step']}")
        return await super().aput(config, checkpoint, metadata, versions)


class Counted(TypedDict):
    count: int


async def test_each_step_is_stored_before_the_next_one_starts() -> None:
    log: list[str] = []

    async def first(state: Counted) -> Counted:
        log.append("first")
        return {"count": 1}

    async def second(state: Counted) -> Counted:
        log.append("second")
        return {"count": 2}

    builder = StateGraph(Counted)
    builder.add_sequence([first, second])
    builder.add_edge(START, "first")
    graph = builder.compile(checkpointer=SlowSaver(log)).with_config(SYNC_DURABILITY)
    await graph.ainvoke({"count": 0}, THREAD)
    assert log.index("stored step 1") < log.index("second"), (
        "LangGraph no longer reads its default durability from SYNC_DURABILITY's key: find the new "
        "way to set durability='sync' at compile time, or a kill repeats finished model calls"
    )


class Plain(TypedDict):
    items: Annotated[list[str], operator.add]


class Delta(TypedDict):
    items: Annotated[list[str], delta_channel(operator.add)]


async def stored_bytes(schema: Any, steps: int) -> int:
    """Append 1,000 characters at each step, check the result and return the bytes stored."""

    async def append(state: Any) -> Any:
        return {"items": ["x" * 1_000]}

    builder = StateGraph(schema)
    builder.add_node("append", append)
    builder.add_edge(START, "append")
    builder.add_conditional_edges(
        "append", lambda state: "__end__" if len(state["items"]) >= steps else "append"
    )
    saver = InMemorySaver()
    graph = builder.compile(checkpointer=saver)
    result = await graph.ainvoke({"items": []}, THREAD)
    again = (await graph.aget_state(THREAD)).values
    assert result["items"] == again["items"] == ["x" * 1_000] * steps
    blobs = sum(len(blob) for _, blob in saver.blobs.values())
    writes = [write for task in saver.writes.values() for write in task.values()]
    return blobs + sum(len(write[2][1]) for write in writes)


async def test_a_delta_channel_stores_each_write_once() -> None:
    plain, delta = await stored_bytes(Plain, 12), await stored_bytes(Delta, 12)
    assert delta < plain / 2, (
        f"DeltaChannel stored {delta} bytes and a plain list {plain}: it no longer stores only the "
        "writes, so use a plain reducer in hopgate.nodes.run.internals.delta_channel"
    )
