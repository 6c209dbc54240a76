"""A FAKE OpenAI-compatible endpoint on loopback with scripted replies.

It has no model. Tests script its replies and faults, and it records every request, so that calls
can be counted.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Messages = list[dict[str, Any]]
Position = dict[str, float]  # likeliest tokens at one position: token → log-probability

PROMPT_TOKENS = 11  # reported with every reply
COMPLETION_TOKENS = 3


@dataclass(frozen=True)
class Reply:
    """One reply: a text, or a fault.

    Attributes:
        text: The assistant's message.
        logprobs: The likeliest tokens at each position; returned even if not requested.
        status: HTTP status; any other than 200 sends `error` in OpenAI's format, or `body`.
        error: The error's message.
        delay: Seconds to wait before replying; cut short when the server closes.
        body: A raw body to send instead, for malformed replies; parts are sent one by one.
        encoding: The body's Content-Encoding.
        then: Called once the reply is sent.
        retry_after: The value of `Retry-After`.
        finish: The finish reason: `stop`, or `length` at the token limit.
    """

    text: str = ""
    logprobs: Sequence[Position] | None = None
    status: int = 200
    error: str = "scripted fault"
    delay: float = 0.0
    body: bytes | Iterable[bytes] | None = None
    encoding: str | None = None
    then: Callable[[], None] | None = None
    retry_after: str | None = None
    finish: str = "stop"


Script = Callable[[Messages], "Reply | str"]


class _Server(ThreadingHTTPServer):
    """Ignores clients that hang up: some tests kill them."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@dataclass
class FakeOpenAI:
    """The fake endpoint; a context manager that serves in threads.

    Attributes:
        requests: The bodies of all chat requests so far, in order.
        keys: Their Authorization headers.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.reset()

    def __enter__(self) -> "FakeOpenAI":
        handler = type("Handler", (_Handler,), {"fake": self})
        self._http = _Server(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def base_url(self) -> str:
        """The value for OPENAI_BASE_URL."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def prompts(self) -> list[str]:
        """The text of every request, with its messages joined."""
        return ["\n".join(m["content"] for m in body["messages"]) for body in self.requests]

    def reset(self) -> None:
        """Clear requests and script; every request is refused until the next script."""
        self.requests.clear()
        self.keys.clear()
        self.says()

    def says(self, *replies: Reply | str) -> None:
        """Send these replies, one for each request, then refuse with a 400."""
        left = list(replies)

        def script(_: Messages) -> Reply | str:
            return left.pop(0) if left else Reply(status=400, error="no reply is scripted")

        self.answers(script)

    def answers(self, script: Script) -> None:
        """Compute each reply from the messages of its request."""
        self.judges(lambda body: script(body["messages"]))

    def judges(self, judge: Callable[[dict[str, Any]], "Reply | str"]) -> None:
        """Compute each reply from the whole body of its request."""
        self._judge = judge

    def _reply(self, body: dict[str, Any], key: str | None) -> Reply:
        with self._lock:
            self.requests.append(body)
            self.keys.append(key)
            reply = self._judge(body)
        return Reply(reply) if isinstance(reply, str) else reply

    def _wait(self, seconds: float) -> None:
        self._closing.wait(seconds)


class _Handler(BaseHTTPRequestHandler):
    fake: FakeOpenAI
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets

    def do_GET(self) -> None:
        self._send(200, json.dumps({"object": "list", "data": [{"id": "fake"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.fake._reply(body, self.headers["Authorization"])
        if reply.delay:
            self.fake._wait(reply.delay)
        if reply.body is not None:
            self._send(reply.status, reply.body, encoding=reply.encoding)
        elif reply.status != 200:
            error = {"error": {"message": reply.error, "type": "fake", "code": None}}
            content = json.dumps(error).encode()
            self._send(reply.status, content, retry_after=reply.retry_after)
        elif body.get("stream"):
            self._send(200, _stream(reply), "text/event-stream")
        else:
            self._send(200, json.dumps(_completion(reply)).encode())
        if reply.then:
            reply.then()

    def _send(
        self,
        status: int,
        body: bytes | Iterable[bytes],
        kind: str = "application/json",
        encoding: str | None = None,
        retry_after: str | None = None,
    ) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            if retry_after:
                self.send_header("Retry-After", retry_after)
            if encoding:
                self.send_header("Content-Encoding", encoding)
            if isinstance(body, bytes):
                self.send_header("Content-Length", str(len(body)))
                body = [body]
            else:
                self.send_header("Connection", "close")  # which ends the body
            self.send_header("retry-after-ms", "10")  # how long the client waits before a retry
            self.end_headers()
            for part in body:
                self.wfile.write(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client timed out, as some tests intend

    def log_message(self, *args: object) -> None:
        pass


def _completion(reply: Reply) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text},
        "logprobs": _logprobs(reply),
        "finish_reason": reply.finish,
    }
    return _document("chat.completion", [choice], _usage())


def _stream(reply: Reply) -> bytes:
    def choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}

    first = choice({"role": "assistant", "content": reply.text})
    first["logprobs"] = _logprobs(reply)
    chunks = [
        _document("chat.completion.chunk", [first], None),
        _document("chat.completion.chunk", [choice({}, reply.finish)], None),
        _document("chat.completion.chunk", [], _usage()),
    ]
    lines = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def _document(kind: str, choices: list[Any], usage: dict[str, int] | None) -> dict[str, Any]:
    return {
        "id": "fake-1",
        "object": kind,
        "created": 0,
        "model": "fake",
        "choices": choices,
        "usage": usage,
    }


def _usage() -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": COMPLETION_TOKENS,
        "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
    }


def _logprobs(reply: Reply) -> dict[str, Any] | None:
    if reply.logprobs is None:
        return None
    return {
        "content": [
            {
                **_token(next(iter(position)), position),
                "top_logprobs": [_token(token, position) for token in position],
            }
            for position in reply.logprobs
        ]
    }


def _token(token: str, position: Position) -> dict[str, Any]:
    return {"token": token, "logprob": position[token], "bytes": list(token.encode())}
