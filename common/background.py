"""One event loop in a thread of its own, for callers that cannot await.

There is one for the process, because the connections of a chat model belong to an event loop.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

EXIT_SECONDS = 5.0

Value = TypeVar("Value")


class _Background(NamedTuple):
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    ending: asyncio.Event


_lock = threading.Lock()
_background: _Background | None = None


def wait_for(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine on the background loop, with the caller's context variables; blocks.

    An interrupt (Ctrl-C) cancels it.

    Raises:
        RuntimeError: The background loop itself would have to wait.
    """
    background = _running()
    if threading.current_thread() is background.thread:
        coroutine.close()
        raise RuntimeError("invoke would wait for itself here; use `await graph.ainvoke(…)`")
    future = asyncio.run_coroutine_threadsafe(coroutine, background.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _running() -> _Background:
    """Return the loop, started anew if there is none, as after a fork."""
    global _background
    with _lock:
        if _background is None or not _background.thread.is_alive():
            started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
            thread = threading.Thread(target=_run, args=(started,), name="hopgate", daemon=True)
            thread.start()
            _background = _Background(thread, *started.result())
            atexit.register(_end, _background)
        return _background


def _run(started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]") -> None:
    # Not asyncio.run: it ends by starting a thread, which Python 3.12 refuses when it exits.
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_serve(started))
    finally:
        loop.close()


async def _serve(started: "Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]") -> None:
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    started.set_result((loop, ending))
    await ending.wait()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await loop.shutdown_asyncgens()


def _end(background: _Background) -> None:
    """End the loop, which closes the connections that belong to it."""
    if background.thread.is_alive():
        background.loop.call_soon_threadsafe(background.ending.set)
        background.thread.join(EXIT_SECONDS)
