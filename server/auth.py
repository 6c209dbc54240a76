"""Authentication: who may use the server, and each user's access to their own data only.

Use it as it is, or as an example of your own. Turn it on in langgraph.json:

    "auth": {"path": "hopgate.server.auth:auth", "disable_studio_auth": true}

`HOPGATE_TOKENS` names the users (`hopgate.server.tokens`). Without them everyone is refused, and a
server with hopgate's routes does not start. An import that failed would not do: some servers go on
without the module, and let everyone in. Everything that no handler below allows is refused.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from langgraph_sdk import Auth

from hopgate.server import tokens
from hopgate.server.presets import CREATOR

OWNER = "owner"
NO_USERS = "nobody may use this server: it has no users; its log has the cause"
WRITES = ("create", "create_run", "update")

Filter = dict[str, Any]
Request = Auth.types.AuthContext

auth = Auth()
log = logging.getLogger(__name__)


@auth.authenticate
async def authenticate(headers: Mapping[Any, Any]) -> Auth.types.MinimalUserDict:
    """Return the user with the request's bearer token.

    Args:
        headers: The request's headers; names and values are bytes on LangGraph's servers, texts on
            others.

    Raises:
        HTTPException: 401: the token is missing or wrong, or there are no users.
    """
    try:
        users = await asyncio.to_thread(tokens.users_now)
    except Exception as error:  # whatever it is, nobody may get in
        log.error("nobody may use this server: %s", error)
        raise Auth.exceptions.HTTPException(401, NO_USERS) from error
    given = {_text(name).lower(): _text(value) for name, value in headers.items()}
    user = tokens.owner(users, given.get("authorization", ""))
    if user is None:
        log.warning("refused status=401: %s", tokens.REFUSAL)
        raise Auth.exceptions.HTTPException(401, tokens.REFUSAL)
    return {"identity": user}


def _text(header: str | bytes) -> str:
    return header.decode("latin-1") if isinstance(header, bytes) else header


@auth.on
async def deny(ctx: Request, value: Any) -> bool:
    """Refuse everything without a handler of its own."""
    return False


async def own(ctx: Request, value: dict[str, Any]) -> Filter:
    """Restrict threads, with their states and runs, and crons to their owner."""
    if ctx.action in WRITES:
        if value.get("metadata") is None:
            value["metadata"] = {}
        value["metadata"].pop("created_by", None)
        value["metadata"][OWNER] = ctx.user.identity
    return {OWNER: ctx.user.identity}


auth.on.threads(own)
auth.on.crons(own)


@auth.on.assistants
async def own_or_shipped(ctx: Request, value: dict[str, Any]) -> Filter:
    """Restrict assistants to their owner; everyone can read and run those that ship."""
    owned = await own(ctx, value)
    if ctx.action not in ("read", "search"):
        return owned
    return {"$or": [owned, {"created_by": "system"}, {"created_by": CREATOR}]}


@auth.on.store
async def own_namespace(ctx: Request, value: dict[str, Any]) -> None:
    """Restrict each user to a namespace of the store."""
    namespace = tuple(value.get("namespace") or ())
    if namespace[:1] != (ctx.user.identity,):
        value["namespace"] = (ctx.user.identity, *namespace)
