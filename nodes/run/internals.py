"""The places where hopgate leans on features of LangGraph that may change.

Tests fail when a version changes one: `tests/test_internals.py`, and `tests/test_server.py` for
the server's part.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.channels.binop import _get_overwrite as get_overwrite

__all__ = ["SYNC_DURABILITY", "AllSettings", "delta_channel", "get_overwrite"]

Item = TypeVar("Item")

SYNC_DURABILITY: RunnableConfig = {"configurable": {"__pregel_durability": "sync"}}
"""Config that stores each step before the next one starts. LangGraph takes `durability` per call
only; this private key is where it reads the default from. With LangGraph's own default (`async`)
a kill can repeat a model call that had finished."""


def delta_channel(
    reducer: Callable[[list[Item], list[Item]], list[Item]],
) -> DeltaChannel[list[Item]]:
    """Return a channel that checkpoints each write instead of the whole list at every step.

    So the bytes that a loop stores grow with its hops, not with their square. `DeltaChannel` is
    in beta.

    Args:
        reducer: Returns the list after a write.
    """
    return DeltaChannel(lambda old, writes: reduce(reducer, writes, old), list)


class AllSettings(dict[str, Any]):
    """The properties of a schema, which claim to have every name but LangGraph's own.

    A LangGraph server drops the settings of a request whose names the schema lacks. This keeps a
    misspelt one, so that `Context` can refuse it.
    """

    def __contains__(self, name: object) -> bool:
        """Return whether the server should keep a setting of this name."""
        own = str(name).startswith(("__", "langgraph_", "x-", "checkpoint"))
        return super().__contains__(name) or not (own or name in _RUN_KEYS)


_RUN_KEYS = ("thread_id", "run_id", "graph_id", "assistant_id", "cron_id", "user_id")
"""Keys that clients may send beside the settings in `configurable`."""
