"""`hopgate serve`: `/v1`, MCP and the metrics on their own, without a LangGraph server."""

import asyncio
import logging
import math
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopgate.common import faults
from hopgate.common.errors import reason
from hopgate.common.files import private_file
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.run.stopping import end_runs
from hopgate.server.observing import logs

if TYPE_CHECKING:
    from hopgate.server.probes import Probes

CUT_SECONDS = 5  # to tell the clients of answers that are cut
MAX_CONNECTIONS = 500

log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        RuntimeError: The address cannot be used, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, TypeError, ValueError) as error:  # the last two: it is not a host's name
        cause = getattr(error, "strerror", None) or str(error)
        raise RuntimeError(
            f"{host}:{port} cannot be used ({cause}); choose another --port or --host"
        ) from error


def serve(
    host: str,
    port: int,
    graph: AdaptiveGraph | None,
    settings: Mapping[str, Any],
    announce: Callable[[str], None],
    *,
    keep: Path | None = None,
    drain: float,
    check: bool,
) -> None:
    """Serve a graph until Ctrl-C or SIGTERM, after checking everything that it needs.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one.
        graph: The graph; None is hopgate's own.
        settings: Of every request, by fields of `Context`.
        announce: Called with the lines for the person who started it.
        keep: SQLite file to keep answered conversations in; None keeps none.
        drain: Seconds for running answers once it is to end.
        check: Whether to check only.

    Raises:
        RuntimeError: The address or `keep` cannot be used.
        ValueError: The limits, the tokens, or something that requests will need cannot be used.
    """
    import uvicorn

    from hopgate.server.access.users import LOOPBACK
    from hopgate.server.graph import graph as own
    from hopgate.server.probes import Probes
    from hopgate.server.tokens import VARIABLE

    if keep:
        _prepare(keep)
    served = graph or own
    probes = Probes(lambda: served, settings)
    app = _app(served, settings, keep, probes)
    asyncio.run(probes.check())
    if check:
        announce("everything that is needed can be used")
        return

    class Draining(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            log.warning("stopping: running answers have %g s", drain)
            asyncio.get_running_loop().call_later(drain, end_runs)
            await super().shutdown(sockets)

    with listen(host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        announce(f"http://{shown}:{bound.getsockname()[1]}/v1 is ready; Ctrl-C ends it")
        if host not in LOOPBACK and not os.environ.get(VARIABLE, "").strip():
            announce(f"anyone who reaches {host} may ask: set {VARIABLE} (docs/serving.md)")
        if keep:
            announce(f"conversations and answers are kept in {keep}")
        logs.to_stderr()
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=math.ceil(drain) + CUT_SECONDS,
        )
        Draining(config).run(sockets=[bound])


def _prepare(keep: Path) -> None:
    """Create the file of kept conversations, or close it to other users.

    Raises:
        RuntimeError: It cannot be created, or is not an SQLite file.
    """
    try:
        with closing(sqlite3.connect(keep)) as database:
            database.execute("PRAGMA schema_version")
        private_file(keep)
    except (OSError, sqlite3.Error) as error:
        raise RuntimeError(
            f"--keep {keep} cannot be used: {reason(error)}; name another file"
        ) from error


def _app(
    graph: AdaptiveGraph, settings: Mapping[str, Any], keep: Path | None, probes: "Probes"
) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from hopgate.server import mcp
    from hopgate.server.access import setup as access
    from hopgate.server.openai import v1
    from hopgate.server.tokens import VARIABLE

    if access.has_others() and not access.users():
        raise ValueError(
            "the configuration in this folder names `auth`, whose users hopgate serve does not "
            f"know; set {VARIABLE}"
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        with faults.serving():
            async with tools.run(), chat.run():
                yield

    tools = mcp.Endpoint(lambda: graph, settings)
    chat = v1.OpenAIRoutes(lambda: graph, settings, keep)
    watched = probes.routes()
    return Starlette(
        routes=[
            *(chat.mount(), tools.route("/hopgate/mcp"), Mount("/hopgate", routes=watched)),
            *watched,
        ],
        lifespan=lifespan,
    )
