"""Threads: blocking work that may hang, an event loop for callers without one, the process's end.

No thread here holds up the end of the process. There is one background event loop for the process,
because the connections of a chat model belong to an event loop.
"""

import asyncio
import atexit
import contextvars
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

AT_ONCE = 64
"""Threads of one kind of call in an event loop; more wait, so that a store that hangs cannot use up
memory."""
EXIT_SECONDS = 5.0
"""Time for the background loop to close its connections when the process ends."""

Value = TypeVar("Value")

busy = set[object]()
"""One entry for each thread that is at work and that the process does not wait for."""
_free: deque[SimpleQueue[Callable[[], None]]] = deque()
_Slots = WeakValueDictionary[str, asyncio.Semaphore]  # by kind, while a call holds or awaits one
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots] = WeakKeyDictionary()
_lock = threading.Lock()
_caller = contextvars.ContextVar[asyncio.AbstractEventLoop]("caller")
_background: tuple[threading.Thread, asyncio.AbstractEventLoop] | None = None


def _forget() -> None:
    busy.clear()
    _free.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)  # a forked process has none of the threads


# Blocking work


async def in_thread(kind: str, run: Callable[..., Value], *arguments: Any) -> Value:
    """Call a function in a thread, with the caller's context variables.

    Unlike with `asyncio.to_thread`, a caller that stops waiting is free at once, and calls that
    never return do not block those of another kind.

    Args:
        kind: The resource that the calls share, such as one store.
        run: The function.
        *arguments: Its arguments.
    """
    loop, done = asyncio.get_running_loop(), Future[Value]()
    slots = _slots.setdefault(loop, _Slots()).setdefault(kind, asyncio.Semaphore(AT_ONCE))
    await slots.acquire()
    context = contextvars.copy_context()
    context.run(_caller.set, loop)

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


def for_caller(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine on the loop that a thread of `in_thread` works for; blocks.

    Elsewhere it runs on the background loop, see `wait_for`.
    """
    if (loop := _caller.get(None)) is None:
        return wait_for(coroutine)
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


def start(work: Callable[[], None]) -> None:
    """Hand work to a free thread, or to a new one; the process does not wait for it."""
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


# The background loop


def wait_for(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine on the background loop, with the caller's context variables; blocks.

    An interrupt (Ctrl-C) cancels it.

    Raises:
        RuntimeError: The background loop itself would have to wait.
    """
    thread, loop = _running()
    if threading.current_thread() is thread:
        coroutine.close()
        raise RuntimeError("invoke would wait for itself here; use `await graph.ainvoke(…)`")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _running() -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
    """Return the loop and its thread, started anew if there is none, as after a fork."""
    global _background
    with _lock:
        if _background is None or not _background[0].is_alive():
            started = Future[asyncio.AbstractEventLoop]()
            thread = threading.Thread(
                target=_run_loop, args=(started,), name="hopgate", daemon=True
            )
            thread.start()
            _background = thread, started.result()
            atexit.register(_end_loop, *_background)
        return _background


def _run_loop(started: Future[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner() as runner:  # which closes the connections that belong to the loop
        started.set_result(runner.get_loop())
        runner.get_loop().run_forever()


def _end_loop(thread: threading.Thread, loop: asyncio.AbstractEventLoop) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(EXIT_SECONDS)


# The end


def end_process(code: int) -> NoReturn:
    """End the process with an exit code, whatever its threads are doing.

    An ordinary end stops a thread as soon as it comes back from a library, and C++ code such as
    ONNX Runtime's then aborts the process (SIGABRT).
    """
    if not busy:
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)
