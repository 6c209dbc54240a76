"""Slow clients: what a real `hopgate serve` closes, and that it answers others meanwhile."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from langgraph_dev import Server, free_port, running
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from hopgate.server import guards
from hopgate.server.guards import BODY_BYTES, BodyLimit

HEAD_SECONDS, BODY_SECONDS, SEND_SECONDS = 2, 3, 4
MAX_CONNECTIONS = 450
PATIENCE = 20  # seconds that a test waits for a connection to be closed

# A server with shorter times; they are no options. `/flood` is a response that never ends.
SERVER = f"""
import asyncio
from starlette.routing import Route
from hopgate.server import guards
from hopgate.server.v1 import Stream
guards.BODY_SECONDS, guards.SEND_SECONDS = {BODY_SECONDS}, {SEND_SECONDS}
from hopgate.server import connections, serving
connections.HEAD_SECONDS, connections.MAX_CONNECTIONS = {HEAD_SECONDS}, {MAX_CONNECTIONS}
own = serving._app

def app(*given):
    async def parts():
        try:
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)
        finally:
            print("the flood has ended", flush=True)

    built = own(*given)
    built.routes.append(Route("/flood", lambda _: Stream(parts())))
    return built

serving._app = app
from hopgate.cli import main
main()
"""

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-c", SERVER, "serve", "--port", str(port)]
    folder = tmp_path_factory.mktemp("slow")
    with running(command, folder, port, ready="/hopgate/metrics") as found:
        yield found


class Client:
    """One connection that sends a start, and then a byte now and then."""

    def __init__(self, server: Server, start: bytes = b"", drip: bytes = b"") -> None:
        self._port = urlsplit(server.url).port
        self._start, self._drip = start, drip
        self.received = b""

    async def closed(self) -> float:
        """Wait until the server closes the connection, and return the seconds that it took."""
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._start)
        dripping = asyncio.create_task(self._keep_dripping(writer))
        try:
            async with asyncio.timeout(PATIENCE):
                while part := await reader.read(4096):
                    self.received += part
        except ConnectionError:
            pass  # closed all the same
        finally:
            dripping.cancel()
            writer.close()
        return time.monotonic() - began

    async def _keep_dripping(self, writer: asyncio.StreamWriter) -> None:
        while self._drip:
            writer.write(self._drip)
            await asyncio.sleep(0.2)


async def is_answered(server: Server) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        assert (await client.get(f"{server.url}/v1/models")).status_code == 200


async def test_idle_and_dripping_connections_are_closed_and_others_answered(
    server: Server,
) -> None:
    idle = [Client(server) for _ in range(200)]
    heads = [Client(server, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: ", b"x") for _ in range(100)]
    bodies = [Client(server, HEAD + b"Content-Length: 1000\r\n\r\n", b" ") for _ in range(100)]
    slow = [asyncio.create_task(each.closed()) for each in (*idle, *heads, *bodies)]
    answered = 0
    while not all(each.done() for each in slow):
        await is_answered(server)
        answered += 1
    assert answered > 2
    seconds = await asyncio.gather(*slow)
    assert max(seconds) < PATIENCE
    assert {each.received for each in (*idle, *heads)} == {b""}
    # A byte that is on its way when the server closes can cost the client the response.
    answers = [each.received for each in bodies if each.received]
    assert len(answers) > len(bodies) / 2
    for answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head.lower()
        assert json.loads(body)["error"]["code"] == "request_timeout"
    await is_answered(server)


async def test_a_second_request_must_arrive_in_time_too(server: Server) -> None:
    first = b"GET /hopgate/metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    client = Client(server, first + b"GET /v1/mo", b"x")
    assert await client.closed() < PATIENCE
    assert client.received.count(b"HTTP/1.1 200") == 1


async def test_a_connection_that_asks_now_and_then_stays_open(server: Server) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        ports = set()
        for _ in range(8):
            answer = await client.get(f"{server.url}/v1/models")
            ports.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            await asyncio.sleep(HEAD_SECONDS / 4)
    assert len(ports) == 1


async def test_a_client_that_does_not_read_is_given_up(server: Server) -> None:
    port = urlsplit(server.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readline()
    await is_answered(server)
    end = time.monotonic() + PATIENCE
    while "the flood has ended" not in server.log.read_text():
        assert time.monotonic() < end
        await asyncio.sleep(0.1)
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionError):
            while await reader.read(65536):
                pass
    writer.close()


async def test_more_connections_than_the_maximum_are_refused(server: Server) -> None:
    slow = [Client(server) for _ in range(MAX_CONNECTIONS + 50)]
    seconds = await asyncio.gather(*(each.closed() for each in slow))
    refused = [each for each in slow if each.received.startswith(b"HTTP/1.1 503 ")]
    assert len(refused) == 50
    assert max(seconds) < PATIENCE
    await is_answered(server)


async def test_a_body_has_a_limit_even_if_the_operator_sets_none(server: Server) -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES // 1_000_000 + 1):
            yield b" " * 1_000_000

    async with httpx.AsyncClient(timeout=30) as client:
        for path in ("/v1/chat/completions", "/hopgate/mcp"):
            json_type = {"Content-Type": "application/json", "Accept": "application/json"}
            answer = await client.post(f"{server.url}{path}", content=large(), headers=json_type)
            assert answer.status_code == 413, answer.text


# The guard itself, which other servers have too


async def echo(request: Request) -> Response:
    return Response(await request.body())


async def stream(_: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    return StreamingResponse(parts())


GUARDED = Starlette(
    routes=[Route("/", echo, methods=["POST"]), Route("/stream", stream)],
    middleware=[Middleware(BodyLimit, max_bytes=None)],
)


def scope(path: str) -> dict[str, Any]:
    return {
        **{"type": "http", "method": "GET" if path == "/stream" else "POST", "path": path},
        **{"headers": [], "query_string": b"", "asgi": {"spec_version": "2.3"}},
    }


async def test_the_time_counts_from_the_first_byte_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guards, "BODY_SECONDS", 0.5)
    sent: list[Any] = []

    async def drip() -> Any:
        await asyncio.sleep(0.1)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(10):
        await GUARDED(scope("/"), drip, send)
    assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert b"took more than 0.5 s to arrive; send it again" in sent[1]["body"]


async def test_a_request_that_is_whole_may_wait_for_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guards, "BODY_SECONDS", 0.1)
    app = BodyLimit(listen_until_the_client_is_gone, None)
    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await asyncio.sleep(0.5)
        return {"type": "http.disconnect"}

    async with asyncio.timeout(10):
        await app(scope("/"), receive, receive)  # type: ignore[arg-type]  # it sends nothing


async def listen_until_the_client_is_gone(_: Any, receive: Any, __: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def test_a_response_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "SEND_SECONDS", 0.2)
    sent: list[str] = []

    async def receive() -> Any:
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message.get("body"):
            await asyncio.sleep(3600)

    async with asyncio.timeout(10):
        await GUARDED(scope("/stream"), receive, send)
    assert sent == ["http.response.start", "http.response.body"]
