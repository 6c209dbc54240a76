"""Many questions at once, but not too many, with every finished one kept."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def run(
    items: Iterable[Item],
    act: Callable[[Item], Awaitable[Result]],
    concurrency: int,
    on_done: Callable[[Result], None],
) -> None:
    """Act on every item, `concurrency` at a time.

    After the first error nothing new is started; what is running then is finished and handed
    on, for it is paid for. Cancelling (Ctrl-C) gives up what is running at once.

    Args:
        items: What to act on, taken as places get free.
        act: What to do with one.
        concurrency: Most at a time, at least 1.
        on_done: Called with each result as it comes, in the order in which they come.

    Raises:
        Exception: The first error of `act` or `on_done`, when nothing runs any more.
    """
    waiting = iter(items)
    errors: list[Exception] = []

    async def work() -> None:
        for item in waiting:
            if errors:
                return
            try:
                on_done(await act(item))
            except Exception as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    if errors:
        raise errors[0]
