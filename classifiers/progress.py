"""A progress bar on stderr for long training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(name: str, steps: int, done: int = 0) -> Iterator[Callable[[float], None]]:
    """Shows `name`, steps `done`, time left and loss; yields what to call with each step's loss."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=steps, completed=done, loss=float("nan"))
        yield lambda loss: progress.update(task, advance=1, loss=loss)
