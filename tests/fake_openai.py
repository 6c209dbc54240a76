"""A FAKE: an OpenAI-compatible endpoint on loopback that says what a test tells it to.

It has no model. It serves the tests of what hopgate does with answers and with faults,
and it records every request, so that calls can be counted.
"""

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Messages = list[dict[str, Any]]
Position = dict[str, float]  # the likeliest tokens at one position: token → log-probability

PROMPT_TOKENS = 11  # what every answer claims to have read
COMPLETION_TOKENS = 3  # and to have written


@dataclass(frozen=True)
class Reply:
    """One answer: a text, or a fault.

    Attributes:
        text: What the assistant says.
        logprobs: Per token, the likeliest tokens; given even if nobody asked.
        status: HTTP status; anything but 200 sends `error` in OpenAI's form.
        error: The error's message.
        delay: Seconds to wait before answering; cut short when the server closes.
        body: Sent as it is instead of an answer, for garbage.
        then: Called when the answer has been sent.
        finish: Why the answer ended: `stop`, or `length` at the limit of tokens.
    """

    text: str = ""
    logprobs: Sequence[Position] | None = None
    status: int = 200
    error: str = "scripted fault"
    delay: float = 0.0
    body: bytes | None = None
    then: Callable[[], None] | None = None
    finish: str = "stop"


Script = Callable[[Messages], "Reply | str"]


@dataclass
class FakeOpenAI:
    """The fake endpoint; a context manager that serves in threads.

    Attributes:
        requests: The body of every chat request so far, in order.
        keys: The Authorization header of each.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.reset()

    def __enter__(self) -> "FakeOpenAI":
        handler = type("Handler", (_Handler,), {"fake": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def base_url(self) -> str:
        """What OPENAI_BASE_URL should be."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def prompts(self) -> list[str]:
        """The text of every request, its messages joined."""
        return ["\n".join(m["content"] for m in body["messages"]) for body in self.requests]

    def reset(self) -> None:
        """Forget requests and script; until a new one, every request is refused."""
        self.requests.clear()
        self.keys.clear()
        self.says()

    def says(self, *replies: Reply | str) -> None:
        """Answer with these, one a request; a request too many gets a 400."""
        left = list(replies)

        def script(_: Messages) -> Reply | str:
            return left.pop(0) if left else Reply(status=400, error="no reply is scripted")

        self._script: Script = script

    def answers(self, script: Script) -> None:
        """Answer every request with what `script` makes of its messages."""
        self._script = script

    def _reply(self, body: dict[str, Any], key: str | None) -> Reply:
        with self._lock:
            self.requests.append(body)
            self.keys.append(key)
            reply = self._script(body["messages"])
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
            self._send(200, reply.body)
        elif reply.status != 200:
            error = {"error": {"message": reply.error, "type": "fake", "code": None}}
            self._send(reply.status, json.dumps(error).encode())
        elif body.get("stream"):
            self._send(200, _stream(reply), "text/event-stream")
        else:
            self._send(200, json.dumps(_completion(reply)).encode())
        if reply.then:
            reply.then()

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("retry-after-ms", "10")  # the client waits no longer than this
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client timed out and left, which is what some tests want

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
