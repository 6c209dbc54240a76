"""Blocking work in threads that may hang: they hold up neither other work nor the process's end."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

AT_ONCE = 64
"""Threads of one event loop; more calls wait, so that a store that hangs cannot use up memory."""

Value = TypeVar("Value")

_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


async def in_thread(run: Callable[..., Value], *arguments: Any) -> Value:
    """Call a function in a thread of its own, with the caller's context variables.

    Unlike with `asyncio.to_thread`, whoever stops waiting is free at once, and a call that never
    returns keeps no other function from running.
    """
    loop, done = asyncio.get_running_loop(), Future[Value]()
    slots = _slots.setdefault(loop, asyncio.Semaphore(AT_ONCE))
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
    threading.Thread(target=work, name="hopgate-call", daemon=True).start()
    return await asyncio.wrap_future(done)
