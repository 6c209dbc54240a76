"""The two places where hopgate leans on LangGraph features that may change.

`tests/test_internals.py` fails with a clear message when a version of LangGraph changes either.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel

Item = TypeVar("Item")

SYNC_DURABILITY: RunnableConfig = {"configurable": {"__pregel_durability": "sync"}}
"""Config that stores each step before the next one starts. LangGraph takes `durability` per call
only; this private key is where it reads the default from. With LangGraph's own default (`async`)
a kill can repeat a model call that had finished."""


def delta_channel(
    apply: Callable[[list[Item], Sequence[list[Item]]], list[Item]],
) -> DeltaChannel[list[Item]]:
    """Return a channel that checkpoints each write instead of the whole list at every step.

    So the bytes that a loop stores grow with its hops, not with their square. `DeltaChannel` is
    in beta.

    Args:
        apply: Returns the list after a sequence of writes.
    """
    return DeltaChannel(apply, list)
