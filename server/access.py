"""Whether a server's set-up asks for users, and whether they can be had.

A server that asks for users and cannot have them must answer nobody. LangGraph's own servers do not
start then; others go on with everyone as one anonymous user.
"""

import json
import logging
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from hopgate.server import tokens

AUTH = "LANGGRAPH_AUTH"  # set by LangGraph's own servers if langgraph.json has `auth`
AUTH_TYPE = "LANGGRAPH_AUTH_TYPE"  # where LangSmith's platform runs the server, its own users
OPEN = "noop"
OWN = "hopgate.server.auth"

log = logging.getLogger(__name__)


def named() -> str | None:
    """Return what the server's configuration names as `auth`, such as `hopgate.server.auth:auth`.

    LangGraph's own servers put it into the environment. Aegra reads it from the first file that
    exists; without a server, any file counts that asks for users.

    Returns:
        The module and the name; None: the configuration has no `auth`.

    Raises:
        ValueError: The file cannot be read.
    """
    if "langgraph_api" in sys.modules or AUTH in os.environ:
        return _path(os.environ.get(AUTH, ""))
    names = (os.environ.get("AEGRA_CONFIG", ""), "aegra.json", "langgraph.json")
    files = [Path(each) for each in names if each and Path(each).is_file()]
    if "aegra_api" in sys.modules:
        del files[1:]
    return next((auth for file in files if (auth := _in_file(file))), None)


def has_others() -> bool:
    """Return whether the server's users may be other than those of `HOPGATE_TOKENS`."""
    return named() is not None or os.environ.get(AUTH_TYPE, OPEN) != OPEN


def users() -> dict[str, str]:
    """Return the users of `HOPGATE_TOKENS`, as `tokens.users`; none if the set-up asks for none.

    Raises:
        ValueError: The set-up asks for users, and they cannot be had: `HOPGATE_TOKENS` is missing,
            empty or malformed, or what the configuration names as `auth` cannot be loaded.
    """
    path = named()
    asks = tokens.VARIABLE in os.environ or (path or "").rpartition(":")[0] == OWN
    found = tokens.users() if asks else {}
    if path and AUTH not in os.environ:  # LangGraph's own servers load it, or do not start
        _load(path)
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
    """Return the path that a configuration names as `auth`.

    Raises:
        ValueError: The file cannot be read.
    """
    try:
        auth = json.loads(file.read_text(encoding="utf-8")).get("auth")
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    return _path(json.dumps(auth)) if auth else None


def _path(auth: str) -> str | None:
    """Return the path in the value of `auth`: JSON, or the path itself."""
    try:
        value: Any = json.loads(auth)
    except ValueError:
        value = auth
    return str(value.get("path")) if isinstance(value, dict) else value or None


def _load(path: str) -> None:
    """Load what `auth` names, as a server that would go on without it loads it.

    Raises:
        ValueError: It cannot be loaded.
    """
    aegra = sys.modules.get("aegra_api.core.auth_middleware")
    module, _, name = path.rpartition(":")
    if aegra is None and module.endswith(".py"):  # only the server may run a file, and only once
        return
    try:
        found = aegra.get_auth_instance() if aegra else getattr(import_module(module), name)
        cause = "its log has the cause"
    except Exception as error:  # whatever a module raises
        found, cause = None, f"{type(error).__name__}: {error}"
    if found is None:
        raise ValueError(
            f"the server's configuration names auth {path!r}, which cannot be loaded ({cause}); "
            "correct it, or nobody may use the server"
        )
