"""Tokens: the users of a server, known by the SHA-256 of their bearer tokens.

`HOPGATE_TOKENS` names them: a JSON object, or the path of a JSON file, from each token's hash to
its user's name. Hashes need no salt here: nobody guesses a token of 256 random bits.

`python -m hopgate.server.tokens NAME` makes a token and its entry.
"""

import hashlib
import json
import re
import secrets
import sys

from hopgate.nodes.limits import json_variable

VARIABLE = "HOPGATE_TOKENS"

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[\w@-]{1,64}", re.ASCII)  # no period: it is a label in the store's namespaces


def digest(token: str) -> str:
    """Return what is kept of a token: its SHA-256 in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def users() -> dict[str, str]:
    """Read who may use the server.

    Returns:
        Names by the hashes of their tokens; a name may have several.

    Raises:
        ValueError: `HOPGATE_TOKENS` names nobody, or is not what it should be.
    """
    given = json_variable(VARIABLE)
    if not given:
        raise ValueError(
            f"{VARIABLE} names no users; make a token with python -m hopgate.server.tokens NAME"
        )
    for key, name in given.items():
        # The key is not shown: it may be a token that somebody forgot to hash.
        if not _DIGEST.fullmatch(key) or key == digest(""):
            raise ValueError(f"{VARIABLE}: the key of {name!r} is no SHA-256 in lower-case hex")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{VARIABLE}: a user is named {name!r}; use letters, digits, _, @, -")
    return given


def main(arguments: list[str]) -> int:
    """Make a token for a user, and print it with its entry for `HOPGATE_TOKENS`."""
    if len(arguments) != 1 or not _NAME.fullmatch(arguments[0]):
        sys.stderr.write("usage: python -m hopgate.server.tokens NAME (letters, digits, _, @, -)\n")
        return 2
    token = secrets.token_urlsafe(32)
    entry = json.dumps({digest(token): arguments[0]})
    sys.stdout.write(f"token: {token}\n{VARIABLE}: {entry}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
