"""Loading what the first question needs when the server starts, not when the question comes."""

import asyncio
import logging
import time

from hopgate.nodes.context import Context
from hopgate.nodes.limits import limits_from_environment
from hopgate.nodes.runtime import NodeRuntime, Resources

QUESTION = "What is asked first?"

log = logging.getLogger(__name__)


async def warm_up() -> None:
    """Load the default model client, router, index and encoder, and use each but the model once.

    What cannot be loaded is logged, and fails again with its full error when a request needs it.
    """
    started = time.perf_counter()
    try:
        runtime = NodeRuntime(_context(), Resources())
        await asyncio.gather(runtime.route(QUESTION), runtime.search(QUESTION, 1))
        await runtime.model()
    except Exception as error:  # whatever it is, the server must start
        log.warning("the defaults could not be loaded at the start: %s", error)
    else:
        log.info("the defaults were loaded in %.1f s", time.perf_counter() - started)


def _context() -> Context:
    """Return the settings of a request that sets none."""
    try:
        return limits_from_environment().apply(Context())
    except ValueError:  # the limits name the user; nobody sees what this searches
        return Context()
