"""Presets: assistants with a saved α, which every server has from its start.

langgraph.json knows no assistants, so the web app's lifespan makes them, through the client that
speaks to its own server; that client is trusted, so this also works where users need a token.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from uuid import UUID, uuid5

from langgraph_sdk import get_client
from starlette.applications import Starlette

from hopgate.nodes import limits
from hopgate.nodes.context import Context

log = logging.getLogger(__name__)

GRAPH = "hopgate"
CREATOR = "hopgate"
NAMESPACE = UUID("5f0c5e0e-7c0a-4b52-9a55-3b8f4d0f6f11")  # random; gives a preset its id for good


class Preset(NamedTuple):
    """An assistant that ships: its name, α and what it is for."""

    name: str
    alpha: float
    description: str

    @property
    def assistant_id(self) -> str:
        """The same on every server and after every start."""
        return str(uuid5(NAMESPACE, self.name))


PRESETS = (
    Preset("cheapest", 0.0, "α = 0: retrieves only where the gate asks for it."),
    Preset("most-reliable", 1.0, "α = 1: always retrieves, several times where in doubt."),
    Preset("balanced", Context().alpha, "The default α: several retrievals where they pay."),
)  # lists begin with the newest, so what takes the first has the default


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Make the presets before the server answers."""
    try:
        await make()
    except Exception as error:  # a server without assistants serves all the same
        log.warning("the presets could not be made: %s", type(error).__name__, exc_info=error)
    yield


async def make() -> None:
    """Make the presets that are not there yet; one that a person has changed stays as it is.

    Those that `HOPGATE_LIMITS` refuses are left out.
    """
    allowed = limits.from_environment()
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
