"""OpenAI's embeddings API on loopback, answered by the embedded encoder; faults on request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from hopgate.retrievers.encoders import load_encoder

KEY = "sk-embeddings-of-the-tests"


@dataclass
class EmbeddingServer:
    """What the server saw, and what it does next.

    Attributes:
        url: Its address.
        texts: All texts that it embedded, in order.
        faults: Statuses with headers for the next requests.
        dimension: Components of a vector that it returns.
    """

    url: str = ""
    texts: list[str] = field(default_factory=list)
    faults: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    dimension: int = 384

    def answer(self, texts: list[str]) -> bytes:
        self.texts += texts
        vectors = load_encoder("minilm").encode_queries(texts)[:, : self.dimension]
        data = [{"index": at, "embedding": each} for at, each in enumerate(vectors.tolist())]
        return json.dumps({"data": data, "model": "minilm", "object": "list"}).encode()


@contextmanager
def embedding_server() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, headers = server.faults.pop(0) if server.faults else (200, {})
            if self.headers["authorization"] != f"Bearer {KEY}":
                status = 401
            given = sent["input"]
            body = b'{"error": {"message": "no: ' + KEY.encode() + b'"}}'
            if status == 200:
                body = server.answer([given] if isinstance(given, str) else given)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
