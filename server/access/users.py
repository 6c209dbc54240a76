"""Who may use hopgate's own routes: the users of the LangGraph server, with the same tokens."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from starlette.authentication import SimpleUser
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hopgate.nodes.run.identity import identity
from hopgate.server import tokens
from hopgate.server.access import setup as access
from hopgate.server.access.refusals import refusal

FOREIGN = (
    "this server has users of its own; set "
    '"enable_custom_route_auth": true under `http` in langgraph.json to let them in here, '
    "or on Aegra HOPGATE_TOKENS"
)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOCAL = re.compile(r"https?://(127\.0\.0\.1|\[::1\]|localhost)(:\d+)?")


class Users:
    """Lets in only those who may use the server, and puts the user into the scope.

    - With `HOPGATE_TOKENS`, a request needs a user's token.
    - A user whom the server itself has authenticated (`enable_custom_route_auth`) is let in. With
      `auth` of another kind in langgraph.json, anyone else is refused.
    - Otherwise everyone is let in except pages of other web sites: a browser lets them send
      requests to servers on its own machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`; the server's configuration is read once.

        Raises:
            ValueError: The server requires users, but none can be loaded.
        """
        self._app = app
        self._needs_token = bool(access.users())
        self._has_others = access.has_others()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope)
        if user_of(scope):
            await self._app(scope, receive, send)
        elif self._needs_token:
            users = await asyncio.to_thread(tokens.users_now)
            name = tokens.owner(users, headers.get("authorization", ""))
            if name is None:
                refused = refusal(401, tokens.REFUSAL, {"WWW-Authenticate": "Bearer"})
                await refused(scope, receive, send)
            else:
                await self._app({**scope, "user": SimpleUser(name)}, receive, send)
        elif self._has_others:
            await refusal(403, FOREIGN)(scope, receive, send)
        elif not _is_local(origin := headers.get("origin")):
            await refusal(403, f"pages of {origin} may not use this server")(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def user_of(scope: Mapping[str, Any]) -> Any:
    """Return a request's authenticated user, with an `identity`; None if there is none."""
    user = scope.get("user")
    name = identity(user)
    if name is None:
        return None
    return SimpleUser(name) if isinstance(user, Mapping) else user


def _is_local(origin: str | None) -> bool:
    """Return whether a request comes from a page of this machine, or from no page at all."""
    return origin is None or LOCAL.fullmatch(origin) is not None
