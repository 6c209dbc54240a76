"""`hopgate serve` and `hopgate mcp`: answers for other programs."""

import asyncio
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import click

from hopgate.commands.options import EVERY_FIELD, command, request_context
from hopgate.common.errors import require


@command(context=EVERY_FIELD, json=False)
def mcp(*, settings: dict[str, Any]) -> None:
    """Serve the tools ask, search and route to an MCP client, over stdin and stdout.

    The client starts this command itself; the options are the settings of its questions. In a
    folder with a langgraph.json, its graph is used.
    """
    require("hopgate mcp", "mcp", extra="mcp")
    from hopgate.graphs.adaptive import graph
    from hopgate.server import mcp as tools
    from hopgate.server import project

    settings = _checked(settings)
    with redirect_stdout(sys.stderr):  # stdout is the client's
        graph = project.load(Path.cwd()) or graph
    if sys.stdin.isatty():
        click.echo("hopgate mcp: waiting for an MCP client on stdin; see docs/mcp.md", err=True)
    asyncio.run(tools.serve_stdio(graph, settings))


@command(context=EVERY_FIELD, json=False)
def serve(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, click.IntRange(0, 65535)] = 8000,
    keep: Path | None = None,
    drain: Annotated[float, click.FloatRange(0, 3600)] = 30,
    check: bool = False,
    settings: dict[str, Any],
) -> None:
    """Serve OpenAI's API at /v1, for chat clients and OpenAI's libraries, and MCP.

    In a folder with a langgraph.json, its graph is served. The other options are the settings of
    every request; a model's name may set α (hopgate-0.7).

    Args:
        host: Address to listen on.
        port: Port; 0: a free one.
        keep: SQLite file to keep every conversation and answer in, for feedback and `hopgate
            harvest`. Default: none is kept.
        drain: Seconds that running answers have to end after SIGTERM or Ctrl-C.
        check: Only check the model, the index, the router, the limits and the users.
        settings: Fields of `Context`.
    """
    require("hopgate serve", "starlette", "uvicorn", "prometheus_client", "dotenv", extra="serve")
    from hopgate.server import project, serving

    def announce(line: str) -> None:
        click.echo(f"hopgate: {line}", err=True)

    graph, settings = project.load(Path.cwd()), _checked(settings)
    serving.serve(host, port, graph, settings, announce, keep=keep, drain=drain, check=check)


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of every request after checking them; α may be given by its name."""
    alpha = request_context(given).alpha
    return {**given, "alpha": alpha} if "alpha" in given else given
