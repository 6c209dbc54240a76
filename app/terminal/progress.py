"""Progress on stderr: bars in a terminal, lines in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from hopgate.terminal.guard import harmless
from hopgate.terminal.pages import err, note

FIRST_SECONDS = 1.0
LINE_SECONDS = 5.0
MAX_LINE_SECONDS = 60.0
LINES_PER_DOUBLING = 10
"""How often progress is printed where there is no terminal."""

Update = Callable[[str, int, int], None]


@contextmanager
def stages(*, brief: bool = False) -> Iterator[Update]:
    """Show the progress of each stage; yields a callback of stage, done and total.

    Args:
        brief: For work that is usually over at once: leave no bars behind, and print no lines
            in the first seconds.
    """
    if not err.is_terminal:
        yield _lines(LINE_SECONDS if brief else FIRST_SECONDS)
        return
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=err,
        transient=brief,
        speed_estimate_period=3600,  # a slow model answers once a minute
    )
    with bars:
        tasks: dict[str, Any] = {}
        starting = bars.add_task("starting", total=None, rate="")

        def update(stage: str, done: int, total: int) -> None:
            bars.update(starting, visible=False)
            if stage not in tasks:  # a new bar, so that earlier work does not distort the estimate
                shown = escape(harmless(stage, lines=False))
                tasks[stage] = bars.add_task(shown, total=total, completed=done, rate="")
            bars.update(tasks[stage], completed=done, total=total)
            speed = next(each.speed for each in bars.tasks if each.id == tasks[stage])
            bars.update(tasks[stage], rate=f"{speed:.0f}/s" if speed else "")

        yield update
        bars.update(starting, visible=False)


@contextmanager
def resumable() -> Iterator[None]:
    """Say after an interrupt that the same command goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("interrupted; run the same command again to resume") from error


@contextmanager
def stage(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of work with one stage; yields a callback of done and total."""
    with stages() as update:
        yield partial(update, doing)


def _lines(quiet_seconds: float) -> Update:
    """Return a callback that prints lines for a log.

    The first comes after `quiet_seconds`, then one at the start of each stage and every few
    seconds, and in long work every minute.
    """
    started = printed = time.monotonic()
    current, stage_started, before = "", started, 0

    def update(stage: str, done: int, total: int) -> None:
        nonlocal printed, current, stage_started, before
        now = time.monotonic()
        new = stage != current
        if new:
            current, stage_started, before = stage, now, done
        wait = max(LINE_SECONDS, (now - started) / LINES_PER_DOUBLING)
        due = now - printed >= min(wait, MAX_LINE_SECONDS)
        if now - started < quiet_seconds or not (new or due or done == total):
            return
        printed, did = now, done - before
        line = f"{stage}: {done:,} of {total:,}"
        if did > 0 and done < total:
            took = now - stage_started
            left = timedelta(seconds=round(took / did * (total - done)))
            line += f" ({did / took:.0f}/s, {left} left)"
        note(line)

    return update
