"""Blocking work in threads that may hang: they hold up neither other work nor the process's end."""

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from hopgate.common.ending import busy

AT_ONCE = 64
"""Threads of one kind of call in an event loop; more wait, so that a store that hangs cannot use up
memory."""

Value = TypeVar("Value")

_free: deque[SimpleQueue[Callable[[], None]]] = deque()
_Slots = WeakValueDictionary[str, asyncio.Semaphore]  # by kind, while a call holds or awaits one
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_free.clear)  # a forked process has none of the threads


async def in_thread(kind: str, run: Callable[..., Value], *arguments: Any) -> Value:
    """Call a function in a thread, with the caller's context variables.

    Unlike with `asyncio.to_thread`, whoever stops waiting is free at once, and calls that never
    return keep none of another kind from running.

    Args:
        kind: What hangs together, such as one store.
        run: What to call.
        *arguments: What it is called with.
    """
    loop, done = asyncio.get_running_loop(), Future[Value]()
    slots = _slots.setdefault(loop, _Slots()).setdefault(kind, asyncio.Semaphore(AT_ONCE))
    await slots.acquire()
    context = contextvars.copy_context()

    def free(_: object) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(slots.release)

    def work() -> None:
        try:
            done.set_result(context.run(run, *arguments))
        except BaseException as error:
            done.set_exception(error)

    done.set_running_or_notify_cancel()
    done.add_done_callback(free)
    try:
        start(work)
    except RuntimeError as error:  # the system gives no more threads
        done.set_exception(error)
    return await asyncio.wrap_future(done)


def start(work: Callable[[], None]) -> None:
    """Hand work to a thread that is free, or to a new one; the process does not wait for it."""
    try:
        wanted = _free.pop()
    except IndexError:
        wanted = SimpleQueue()
        threading.Thread(target=_serve, args=(wanted,), name="hopgate-call", daemon=True).start()
    busy.add(wanted)
    wanted.put(work)


def _serve(wanted: "SimpleQueue[Callable[[], None]]") -> None:
    while True:
        wanted.get()()
        busy.discard(wanted)
        _free.append(wanted)
