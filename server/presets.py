"""Presets: assistants with a saved α, created when the server starts.

langgraph.json cannot define assistants, so the web app's lifespan creates them through the SDK's
in-process client. The server trusts that client, so this also works where users need a token.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import UUID, uuid5

from langgraph_sdk import get_client
from starlette.applications import Starlette

from hopgate.nodes.context import Context
from hopgate.nodes.limits import limits_from_environment

log = logging.getLogger(__name__)

GRAPH = "hopgate"
CREATOR = "hopgate"
NAMESPACE = UUID("5f0c5e0e-7c0a-4b52-9a55-3b8f4d0f6f11")  # random; keeps ids permanent


class Preset(NamedTuple):
    """An assistant that ships: its name, its α and its description."""

    name: str
    alpha: float
    description: str

    @property
    def assistant_id(self) -> str:
        """Return the assistant's id, the same on every server."""
        return str(uuid5(NAMESPACE, self.name))


PRESETS = (
    Preset("cheapest", 0.0, "α = 0: retrieves only if the gate asks for it."),
    Preset("most-reliable", 1.0, "α = 1: always retrieves, several times if in doubt."),
    Preset("balanced", Context().alpha, "The default α: retrieves several times if it pays off."),
)  # lists start with the newest: clients that take the first get the default


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Create the presets before the server answers requests."""
    try:
        await create()
    except Exception as error:  # the server works without them
        log.warning("the presets could not be created: %s", type(error).__name__, exc_info=error)
    yield


async def create() -> None:
    """Create the presets that do not exist yet; changed ones stay as they are.

    Presets with an α that `HOPGATE_LIMITS` forbids are left out.
    """
    allowed = limits_from_environment()
    client = get_client(url=None, api_key=None)
    for preset in PRESETS:
        if not allowed.allows(alpha=preset.alpha):
            log.info("preset %s is left out: HOPGATE_LIMITS does not allow its α", preset.name)
            continue
        await client.assistants.create(
            GRAPH,
            assistant_id=preset.assistant_id,
            name=preset.name,
            description=preset.description,
            context={"alpha": preset.alpha},
            metadata={"created_by": CREATOR},
            if_exists="do_nothing",
        )
