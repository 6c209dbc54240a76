"""Authentication: who may use the server, and that nobody reaches what is another's.

It works as it stands, and shows how to write your own. langgraph.json turns it on:

    "auth": {"path": "hopgate.server.auth:auth", "disable_studio_auth": true}

Who the users are is in `HOPGATE_TOKENS` (`hopgate.server.tokens`); without it the server does not
start. What no handler below allows is refused.
"""

from typing import Any

from langgraph_sdk import Auth

from hopgate.server import tokens
from hopgate.server.presets import CREATOR

OWNER = "owner"
WRITES = ("create", "create_run", "update")

Filter = dict[str, Any]
Request = Auth.types.AuthContext

auth = Auth()
users = tokens.users()


@auth.authenticate
async def authenticate(authorization: str | None) -> str:
    """Return the name of the user whose bearer token came with the request.

    Raises:
        HTTPException: 401, the same for no token and a wrong one.
    """
    scheme, _, token = (authorization or "").partition(" ")
    user = users.get(tokens.digest(token.strip())) if scheme.lower() == "bearer" else None
    if user is None:
        raise Auth.exceptions.HTTPException(401, "give a valid token: Authorization: Bearer …")
    return user


@auth.on
async def deny(ctx: Request, value: Any) -> bool:
    """Refuse what has no handler of its own."""
    return False


@auth.on.threads
async def own_thread(ctx: Request, value: dict[str, Any]) -> Filter:
    """Threads, with their states and runs, are their maker's."""
    return _signed(ctx, value)


@auth.on.crons
async def own_cron(ctx: Request, value: dict[str, Any]) -> Filter:
    """So are crons."""
    return _signed(ctx, value)


@auth.on.assistants
async def own_or_shipped(ctx: Request, value: dict[str, Any]) -> Filter:
    """Assistants are their maker's; those that ship can be read and run by all."""
    mine = _signed(ctx, value)
    if ctx.action not in ("read", "search"):
        return mine
    return {"$or": [mine, {"created_by": "system"}, {"created_by": CREATOR}]}


@auth.on.store
async def own_namespace(ctx: Request, value: dict[str, Any]) -> None:
    """Each user has a part of the store, and sees no other."""
    namespace = tuple(value.get("namespace") or ())
    if namespace[:1] != (ctx.user.identity,):
        value["namespace"] = (ctx.user.identity, *namespace)


def _signed(ctx: Request, value: dict[str, Any]) -> Filter:
    """Write the owner into what is made or changed, and let nobody claim another origin."""
    if ctx.action in WRITES:
        if value.get("metadata") is None:
            value["metadata"] = {}
        value["metadata"].pop("created_by", None)
        value["metadata"][OWNER] = ctx.user.identity
    return {OWNER: ctx.user.identity}
