"""Connections of `hopgate serve`: how many there may be, and how long a slow client may take.

uvicorn has a time limit for idle connections after a request only. How long a request's body may
take is a matter of `hopgate.server.guards`, which other servers need too.
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from hopgate.server.guards import SEND_SECONDS

MAX_CONNECTIONS = 500
HEAD_SECONDS = 10
CHECK_SECONDS = 1.0

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BoundedProtocol(H11Protocol):
    """HTTP/1.1, for at most `MAX_CONNECTIONS` clients.

    A connection is closed when no request's head is complete after `HEAD_SECONDS`, and when what
    was sent is not read for `SEND_SECONDS`.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to watch a connection, or refuse it."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(BUSY)
            transport.close()
        self._asked = self._read = self.loop.time()
        self._timer = self.loop.call_later(CHECK_SECONDS, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to watch it."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._asked = self.loop.time()
        super().on_response_complete()

    def _check(self) -> None:
        now = self.loop.time()
        if self.cycle is not None and not self.cycle.response_complete:
            self._asked = now
        if not self.transport.get_write_buffer_size():
            self._read = now
        if now - self._asked > HEAD_SECONDS or now - self._read > SEND_SECONDS:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(CHECK_SECONDS, self._check)
