"""Calls that arrive together run as one: a batch is cheaper than as many single calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

from hopgate.common.onnx import threads

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")
Result = TypeVar("Result")

LARGEST = 32
"""Items in a batch; more would keep the first ones waiting."""


class _Call(NamedTuple, Generic[Key, Item, Result]):
    key: Key
    item: Item
    done: Future[Result]


class Batcher(Generic[Key, Item, Result]):
    """Runs calls in threads of its own; those that wait for a thread run together.

    Nobody waits for a batch to fill: a call that finds a free thread runs at once, alone. Safe to
    use from any thread and event loop. Calls do not see their caller's context variables.

    Args:
        run: Returns the results of some items with the same key, in their order.
    """

    def __init__(self, run: Callable[[Key, Sequence[Item]], Sequence[Result]]) -> None:
        """Start no thread yet."""
        self._run = run
        self._lock = threading.Lock()
        self._waiting: list[_Call[Key, Item, Result]] = []
        # A batch uses several cores itself.
        self._threads = ThreadPoolExecutor(max(1, threads() // 2), "hopgate-batch")

    def submit(self, key: Key, item: Item) -> Future[Result]:
        """Queue a call, and return where its result or its error will be.

        Args:
            key: Calls with equal keys can run together.
            item: What to run.
        """
        call = _Call[Key, Item, Result](key, item, Future())
        with self._lock:
            self._waiting.append(call)
        self._threads.submit(self._run_next)
        return call.done

    def _run_next(self) -> None:
        """Run the oldest waiting call with those of its key, unless another thread has."""
        with self._lock:
            key = self._waiting[0].key if self._waiting else None
            batch = [call for call in self._waiting if call.key == key][:LARGEST]
            taken = {id(call) for call in batch}
            self._waiting = [call for call in self._waiting if id(call) not in taken]
        wanted = [call for call in batch if call.done.set_running_or_notify_cancel()]
        if wanted:
            self._run_all(wanted)

    def _run_all(self, calls: Sequence[_Call[Key, Item, Result]]) -> None:
        """Run calls as one, or each alone if that fails, so that no call fails for another."""
        try:
            results = self._run(calls[0].key, [call.item for call in calls])
            found = list(zip(calls, results, strict=True))
        except Exception as error:
            if len(calls) == 1:
                calls[0].done.set_exception(error)
            else:
                for call in calls:
                    self._run_all([call])
            return
        for call, result in found:
            call.done.set_result(result)
