"""Tokens: the users of a server, identified by the SHA-256 of their bearer tokens.

`HOPGATE_TOKENS` is a JSON object, or the path of a JSON file, that maps the hash of each token to
the name of its user. The hashes need no salt: tokens are 256 random bits.

`python -m hopgate.server.tokens NAME` creates a token and its entry.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from hopgate.common.cache import Cache
from hopgate.nodes.run.identity import NOBODY
from hopgate.nodes.run.limits import json_variable

VARIABLE = "HOPGATE_TOKENS"
REFUSAL = "missing or wrong token; send Authorization: Bearer TOKEN"

log = logging.getLogger(__name__)

_DIGEST = re.compile(r"[0-9a-f]{64}")
SYSTEM = "system"
"""Aegra's own user: everyone can read and run its assistants."""
# No period: names are store namespaces.
_NAME = re.compile(rf"(?!({NOBODY}|{SYSTEM})$)[\w@-]{{1,64}}", re.ASCII)
_RULE = f"letters, digits, _, @, -, but neither {NOBODY} nor {SYSTEM}"


def digest(token: str) -> str:
    """Return the SHA-256 of a token in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def users() -> dict[str, str]:
    """Read the users of the server from `HOPGATE_TOKENS`.

    Returns:
        The name of the user for the hash of each token; a user may have several tokens.

    Raises:
        ValueError: `HOPGATE_TOKENS` is empty or malformed.
    """
    given = json_variable(VARIABLE)
    if not given:
        raise ValueError(
            f"{VARIABLE} names no users; create a token with python -m hopgate.server.tokens NAME"
        )
    for key, name in given.items():
        # Never show the key: it may be a token that somebody forgot to hash.
        if not _DIGEST.fullmatch(key) or key == digest(""):
            raise ValueError(f"{VARIABLE}: the key of {name!r} is not a SHA-256 in lower-case hex")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{VARIABLE}: a user is named {name!r}; use {_RULE}")
    return given


def users_now() -> dict[str, str]:
    """Return the users; a file is read again when it changes, and ignored while it is malformed."""
    value = os.environ.get(VARIABLE, "").strip()
    files = [] if value.startswith("{") else [Path(value)]

    def load() -> dict[str, str]:
        emptied = value in _last and json_variable(VARIABLE) == {}  # the last user was taken out
        return {} if emptied else users()

    try:
        _last[value] = _read.get(value, load, files)
    except ValueError as error:
        if value not in _last:
            raise
        log.error("the users stay as they were: %s", error)
    return _last[value]


_read = Cache[dict[str, str]]()
_last: dict[str, dict[str, str]] = {}


def owner(users: Mapping[str, str], authorization: str) -> str | None:
    """Return the user whose bearer token a request has; None: nobody's.

    Args:
        users: As `users` returns them.
        authorization: The header of the request; empty: it has none.
    """
    scheme, _, token = authorization.partition(" ")
    return users.get(digest(token.strip())) if scheme.lower() == "bearer" else None


def main(arguments: list[str]) -> int:
    """Create a token for a user, and print it with its entry for `HOPGATE_TOKENS`."""
    if len(arguments) != 1 or not _NAME.fullmatch(arguments[0]):
        sys.stderr.write(f"usage: python -m hopgate.server.tokens NAME ({_RULE})\n")
        return 2
    token = secrets.token_urlsafe(32)
    entry = json.dumps({digest(token): arguments[0]})
    sys.stdout.write(f"token: {token}\n{VARIABLE}: {entry}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
