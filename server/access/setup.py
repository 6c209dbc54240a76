"""Whether a server's configuration requires users, and whether they can be loaded.

A server that requires users but cannot load them must answer nobody. LangGraph's own servers do not
start then; Aegra goes on with everyone as one anonymous user.
"""

import json
import logging
import os
import sys
from pathlib import Path

from hopgate.server import tokens

AUTH = "LANGGRAPH_AUTH"  # set by LangGraph's own servers if langgraph.json has `auth`
AUTH_TYPE = "LANGGRAPH_AUTH_TYPE"  # where LangSmith's platform runs the server, its own users
OPEN = "noop"
OWN = "hopgate.server.auth:"

log = logging.getLogger(__name__)


def configured() -> str | None:
    """Return the `auth` path of the server's configuration, such as `hopgate.server.auth:auth`.

    LangGraph's own servers put it into the environment. Elsewhere any configuration file counts.

    Returns:
        The module and the name; None if the configuration has no `auth`.

    Raises:
        ValueError: A file cannot be read.
    """
    if "langgraph_api" in sys.modules or AUTH in os.environ:
        return (json.loads(os.environ.get(AUTH) or "{}") or {}).get("path") or None
    names = (os.environ.get("AEGRA_CONFIG", ""), "aegra.json", "langgraph.json")
    files = [Path(each) for each in names if each and Path(each).is_file()]
    return next((path for file in files if (path := _in_file(file))), None)


def has_others() -> bool:
    """Return whether the server's users may be other than those of `HOPGATE_TOKENS`."""
    return configured() is not None or os.environ.get(AUTH_TYPE, OPEN) != OPEN


def users() -> dict[str, str]:
    """Return the users of `HOPGATE_TOKENS`, as `tokens.users`; none if the server requires none.

    Raises:
        ValueError: The server requires users, but none can be loaded: `HOPGATE_TOKENS` is missing,
            empty or malformed, or Aegra could not load its `auth`.
    """
    path = configured() or ""
    found = tokens.users() if tokens.VARIABLE in os.environ or path.startswith(OWN) else {}
    aegra = sys.modules.get("aegra_api.core.auth_middleware")
    if path and aegra and aegra.get_auth_instance() is None:
        raise ValueError(
            f"the configuration names auth {path!r}, but the server could not load it (its log has "
            "the cause); correct it, or nobody may use the server"
        )
    return found


def warn_if_open() -> None:
    """Log a warning if the users' tokens guard hopgate's own routes only."""
    if users() and not has_others():
        log.warning(
            "%s guards only hopgate's own routes: anyone may use the server's others, because its "
            "configuration names no `auth` (docs/serving.md)",
            tokens.VARIABLE,
        )


def _in_file(file: Path) -> str | None:
    try:
        return (json.loads(file.read_text(encoding="utf-8")).get("auth") or {}).get("path") or None
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
