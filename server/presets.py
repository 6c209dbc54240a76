"""Presets: assistants with a saved α, created when the server starts.

A server's configuration cannot define assistants, so the web app's lifespan creates them inside the
server, which needs no token: through the SDK's in-process client, or on Aegra through its service.
"""

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from langgraph_sdk import get_client
from starlette.applications import Starlette

from hopgate.nodes.run.limits import limits_from_environment
from hopgate.server.tokens import SYSTEM

log = logging.getLogger(__name__)

GRAPH = "hopgate"
CREATOR = "hopgate"
NAMESPACE = UUID("5f0c5e0e-7c0a-4b52-9a55-3b8f4d0f6f11")  # random; keeps ids permanent


class Preset(NamedTuple):
    """An assistant that ships: its name, its α and its description."""

    name: str
    alpha: float | None
    description: str

    @property
    def assistant_id(self) -> str:
        """Return the assistant's id, the same on every server."""
        return str(uuid5(NAMESPACE, self.name))


DEFAULT = "balanced"
PRESETS = (
    Preset("cheapest", 0.0, "α = 0: retrieves only if the gate asks for it."),
    Preset("most-reliable", 1.0, "α = 1: retrieves wherever the router has learnt that it helps."),
    Preset(DEFAULT, None, "The α of the model's profile: as good as always searching once."),
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
    for preset in PRESETS:
        if preset.alpha is not None and not allowed.allows(alpha=preset.alpha):
            log.info("preset %s is left out: HOPGATE_LIMITS does not allow its α", preset.name)
            continue
        assistant: dict[str, Any] = {
            "graph_id": GRAPH,
            "assistant_id": preset.assistant_id,
            "name": preset.name,
            "description": preset.description,
            "context": {"alpha": preset.alpha},
            "metadata": {"created_by": CREATOR},
            "if_exists": "do_nothing",
        }
        if "aegra_api" in sys.modules:
            await _create_on_aegra(assistant)
        else:
            await get_client(url=None, api_key=None).assistants.create(**assistant)


async def _create_on_aegra(assistant: dict[str, Any]) -> None:
    """Create an assistant that belongs to Aegra's own user."""
    from aegra_api.core.orm import get_session
    from aegra_api.models import AssistantCreate
    from aegra_api.models.auth import User
    from aegra_api.services.assistant_service import AssistantService
    from aegra_api.services.langgraph_service import get_langgraph_service

    async with asynccontextmanager(get_session)() as session:
        service = AssistantService(session, User(identity=SYSTEM), get_langgraph_service())
        await service.create_assistant(AssistantCreate(**assistant))
