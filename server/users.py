"""Who may use hopgate's own routes: the users of the LangGraph server, with the same tokens."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from starlette.authentication import BaseUser
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hopgate.nodes.identity import identity
from hopgate.server import access, tokens
from hopgate.server.refusals import refusal

FOREIGN = (
    "this server has users of its own; set "
    '"enable_custom_route_auth": true under `http` in langgraph.json to let them in here, '
    "or on Aegra HOPGATE_TOKENS"
)
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
        """Wrap `app`; the tokens and the server's configuration are read once.

        Raises:
            ValueError: The set-up asks for users, and they cannot be had.
        """
        self._app = app
        self._users = access.users()
        self._has_others = access.has_others()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope)
        if user_of(scope):
            await self._app(scope, receive, send)
        elif self._users:
            name = tokens.owner(self._users, headers.get("authorization", ""))
            if name is None:
                await refusal(401, tokens.REFUSAL, {"WWW-Authenticate": "Bearer"})(
                    scope, receive, send
                )
                return
            await self._app({**scope, "user": TokenUser(name)}, receive, send)
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
    return TokenUser(name) if isinstance(user, Mapping) else user


def _is_local(origin: str | None) -> bool:
    """Return whether a request comes from no web page, or from one of this machine."""
    if origin is None:
        return True
    try:
        return urlsplit(origin).hostname in LOOPBACK
    except ValueError:
        return False
