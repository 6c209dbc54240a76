"""Who may use hopgate's own routes: the users of the LangGraph server, with the same tokens."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.authentication import BaseUser
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hopgate.server import tokens
from hopgate.server.guards import AUTH
from hopgate.server.refusals import refusal

REFUSAL = "missing or wrong token; send Authorization: Bearer TOKEN"
FOREIGN = (
    "this server has users of its own; set "
    '"enable_custom_route_auth": true under `http` in langgraph.json to let them in here'
)
AUTH_TYPE = "LANGGRAPH_AUTH_TYPE"  # where LangSmith's platform runs the server, its own users
OPEN = "noop"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class TokenUser(BaseUser):
    """A user with a token of `HOPGATE_TOKENS`."""

    def __init__(self, name: str) -> None:
        """Keep the name."""
        self.name = name

    @property
    def is_authenticated(self) -> bool:
        """True: they have a token."""
        return True

    @property
    def display_name(self) -> str:
        """The name."""
        return self.name

    @property
    def identity(self) -> str:
        """The name, which `{user}` stands for in the limits."""
        return self.name


class Users:
    """Lets in only those who may use the server, and puts the user into the scope.

    - With `HOPGATE_TOKENS`, a request needs a user's token.
    - A user whom the server itself has authenticated (`enable_custom_route_auth`) is let in. With
      `auth` of another kind in langgraph.json, anyone else is refused.
    - Otherwise everyone is let in but the pages of other web sites: a browser lets them send
      requests to servers on its own machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`; the tokens are read once."""
        self._app = app
        self._users = tokens.users() if os.environ.get(tokens.VARIABLE, "").strip() else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers, known = Headers(scope=scope), scope.get("user")
        if known is not None and known.is_authenticated:
            await self._app(scope, receive, send)
        elif self._users:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            name = self._users.get(tokens.digest(token.strip()))
            if name is None or scheme.lower() != "bearer":
                await refusal(401, REFUSAL, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
            await self._app({**scope, "user": TokenUser(name)}, receive, send)
        elif os.environ.get(AUTH) or os.environ.get(AUTH_TYPE, OPEN) != OPEN:
            await refusal(403, FOREIGN)(scope, receive, send)
        elif not _is_local(origin := headers.get("origin")):
            await refusal(403, f"pages of {origin} may not use this server")(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def user_of(scope: Mapping[str, Any]) -> Any:
    """Return a request's authenticated user, with an `identity`; None if there is none."""
    user = scope.get("user")
    return user if user and user.is_authenticated else None


def _is_local(origin: str | None) -> bool:
    """Return whether a request comes from no web page, or from one of this machine."""
    if origin is None:
        return True
    try:
        return urlsplit(origin).hostname in LOOPBACK
    except ValueError:
        return False
