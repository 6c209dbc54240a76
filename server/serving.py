"""`hopgate serve`: `/v1`, MCP and the metrics on their own, without a LangGraph server."""

import logging
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Any

from hopgate.common import faults
from hopgate.common.errors import reason, require
from hopgate.common.files import private_file
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.run.context import Context

END_SECONDS = 5  # for answers in progress
MAX_CONNECTIONS = 500


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
    keep: Path | None = None,
) -> None:
    """Serve a graph until Ctrl-C.

    Args:
        host: The address to listen on.
        port: The port; 0 takes a free one.
        graph: The graph; None is hopgate's own.
        settings: Of every request, by fields of `Context`.
        announce: Called with the lines for the person who started it.
        keep: SQLite file to keep answered conversations in; None keeps none.

    Raises:
        RuntimeError: The extra `serve` is missing, or the address or `keep` cannot be used.
        ValueError: The limits or the tokens cannot be used.
    """
    require("hopgate serve", "starlette", "uvicorn", "prometheus_client", "dotenv", extra="serve")
    import uvicorn

    from hopgate.server.access.users import LOOPBACK
    from hopgate.server.tokens import VARIABLE

    if keep:
        _prepare(keep)
    app = _app(graph, settings, keep)
    with listen(host, port) as bound:
        shown = f"[{host}]" if ":" in host else host
        announce(f"http://{shown}:{bound.getsockname()[1]}/v1 is ready; Ctrl-C ends it")
        if host not in LOOPBACK and not os.environ.get(VARIABLE, "").strip():
            announce(f"anyone who reaches {host} may ask: set {VARIABLE} (docs/serving.md)")
        if keep:
            announce(f"conversations and answers are kept in {keep}")
        logging.disable(logging.NOTSET)
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
        logging.getLogger("hopgate").setLevel(logging.INFO)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=END_SECONDS,
        )
        uvicorn.Server(config).run(sockets=[bound])


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


def _app(graph: AdaptiveGraph | None, settings: Mapping[str, Any], keep: Path | None) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Route

    from hopgate.server import mcp
    from hopgate.server.access import setup as access
    from hopgate.server.graph import graph as own
    from hopgate.server.openai import v1
    from hopgate.server.tokens import VARIABLE
    from hopgate.server.warming import warming
    from hopgate.server.web import to_metrics

    if access.has_others() and not access.users():
        raise ValueError(
            "the configuration in this folder names `auth`, whose users hopgate serve does not "
            f"know; set {VARIABLE}"
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # A graph of a project may have parts of its own, which the defaults do not name.
        warm = nullcontext() if graph else warming(Context(**settings))
        with faults.serving():
            async with warm, tools.run(), chat.run():
                yield

    served = graph or own
    tools = mcp.Endpoint(lambda: served, settings)
    chat = v1.OpenAIRoutes(lambda: served, settings, keep)
    return Starlette(
        routes=[chat.mount(), tools.route("/hopgate/mcp"), Route("/hopgate/metrics", to_metrics)],
        lifespan=lifespan,
    )
