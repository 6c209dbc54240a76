"""Runs calls that arrive together as one batch, which is cheaper than single calls."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

from hopgate.common.onnx import threads
from hopgate.common.threads import start

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
    """Runs calls in threads; those that wait for a thread run together.

    Nobody waits for a batch to fill: a call that finds a free thread runs at once, alone. Safe to
    use from any thread and event loop. Calls do not see their caller's context variables. A batch
    that hangs holds up those of its group, but neither others nor the process's end.

    Args:
        run: Returns the results of some items with the same key, in their order.
        group: Names a key's group, whose calls share threads; by default there is one group.
    """

    def __init__(
        self,
        run: Callable[[Key, Sequence[Item]], Sequence[Result]],
        group: Callable[[Key], str] = lambda _: "",
    ) -> None:
        """Start no thread yet."""
        self._run = run
        self._group = group
        self._lock = threading.Lock()
        self._waiting: list[_Call[Key, Item, Result]] = []
        self._busy = Counter[str]()  # threads at work, by group

    def submit(self, key: Key, item: Item) -> Future[Result]:
        """Queue a call, and return where its result or its error will be.

        Args:
            key: Calls with equal keys can run together.
            item: The item to run.
        """
        call, group = _Call[Key, Item, Result](key, item, Future()), self._group(key)
        with self._lock:
            self._waiting = [each for each in self._waiting if not each.done.cancelled()]
            self._waiting.append(call)
            if self._busy[group] < max(1, threads() // 2):  # a batch uses several cores itself
                start(lambda: self._work(group))
                self._busy[group] += 1
        return call.done

    def _work(self, group: str) -> None:
        while batch := self._next(group):
            if wanted := [call for call in batch if call.done.set_running_or_notify_cancel()]:
                self._run_all(wanted)

    def _next(self, group: str) -> list[_Call[Key, Item, Result]]:
        """Return the group's oldest waiting call with those of its key; if none waits, stop."""
        with self._lock:
            keys = (call.key for call in self._waiting if self._group(call.key) == group)
            key = next(keys, None)
            batch = [call for call in self._waiting if call.key == key][:LARGEST]
            taken = {id(call) for call in batch}
            self._waiting = [call for call in self._waiting if id(call) not in taken]
            if not batch:
                self._busy -= Counter([group])
            return batch

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
