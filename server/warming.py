"""Loads models and index when the server starts, not at the first question."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from hopgate.nodes.run.context import Context
from hopgate.nodes.run.limits import limits_from_environment
from hopgate.nodes.run.runtime import NodeRuntime, Resources

QUESTION = "What is asked first?"

log = logging.getLogger(__name__)


async def warm_up(context: Context | None = None) -> None:
    """Load the model client, router, index and encoder, and use each but the model once.

    A failure is logged, and raised in full when a request needs the part that failed.

    Args:
        context: The settings that name them; None is the defaults.
    """
    started = time.perf_counter()
    try:
        settings = context or Context()
        with suppress(ValueError):  # the limits name the user; nobody sees this search
            settings = limits_from_environment().apply(settings)
        runtime = NodeRuntime(settings, Resources())
        await asyncio.gather(runtime.route(QUESTION), runtime.search(QUESTION, 1))
        await runtime.model()
    except Exception as error:  # whatever it is, the server must start
        log.warning("the defaults could not be loaded at the start: %s", error)
    else:
        log.info("the defaults were loaded in %.1f s", time.perf_counter() - started)


@asynccontextmanager
async def warming(context: Context | None = None) -> AsyncIterator[None]:
    """Load the defaults in the background (`warm_up`), until the context ends."""
    task = asyncio.create_task(warm_up(context))
    try:
        yield
    finally:
        task.cancel()
