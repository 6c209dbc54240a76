"""A FAKE model: an OpenAI-compatible endpoint that replies after a fixed time.

There is no model behind it. The prompt shows which of hopgate's calls it is: the gate gets No for
the sample collection's questions of strategy `none` and Yes for others, the loop gets a fact and
then the answer, any other call the answer. The model's name can request faults: `hang` never
answers, `drop` closes the connection, `slow` takes `SLOW` times as long.

    python benchmarks/fixed_latency.py --ms 200 [--port 0] [--cpu 1]

prints its address. GET /counts returns the number of answered calls by kind.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sample_questions import read_questions

from hopgate.nodes.prompts import templates as prompts

FACT = "Skerrane Light was designed by Ilsabet Corrane, who was born in Lissmere."
FINAL = "So the answer is: Lissmere."
CITED, DIRECT = "Lissmere [1]", "Lissmere"
SLOW = 20
FOREVER = 86_400
HEADERS_END = b"\r\n\r\n"


def direct_questions() -> frozenset[str]:
    """Return the sample collection's questions that need no retrieval."""
    return frozenset(row["question"] for row in read_questions() if row["strategy"] == "none")


class Endpoint:
    """Answers requests and counts them.

    Attributes:
        counts: Calls by kind: gate, reason, answer, hang, drop.
    """

    def __init__(self, seconds: float) -> None:
        """Set the latency of a call."""
        self.counts: Counter[str] = Counter()
        self._seconds = seconds
        self._direct = direct_questions()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until it closes."""
        try:
            while head := await _head(reader):
                if head.startswith(b"GET"):
                    writer.write(_response(json.dumps(self.counts).encode()))
                else:
                    await self._chat(json.loads(await _body(head, reader)), writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        finally:
            writer.close()

    async def _chat(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        name = body["model"]
        if name in ("hang", "drop"):
            self.counts[name] += 1
            if name == "hang":
                await asyncio.sleep(FOREVER)
            raise ConnectionAbortedError
        kind, text = self._reply("\n".join(each["content"] for each in body["messages"]))
        await asyncio.sleep(self._seconds * (SLOW if name == "slow" else 1))
        self.counts[kind] += 1
        if body.get("stream"):
            writer.write(_response(_chunks(text), b"text/event-stream"))
        else:
            writer.write(_response(json.dumps(_completion(text)).encode()))

    def _reply(self, prompt: str) -> tuple[str, str]:
        if prompts.VANILLA in prompt:
            question = prompt.rpartition("Question: ")[2].removesuffix("\nAnswer:")
            return "gate", "[No]" if question in self._direct else "[Yes]"
        if prompts.REASON in prompt:
            return "reason", FINAL if FACT in prompt else FACT
        return "answer", CITED if prompts.GROUNDED in prompt else DIRECT


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(HEADERS_END)
    except asyncio.IncompleteReadError:
        return b""


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length))


def _response(body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


def _document(kind: str, choices: list[Any], usage: dict[str, int] | None) -> dict[str, Any]:
    about = {"id": "fake", "object": kind, "created": 0, "model": "fake"}
    return about | {"choices": choices, "usage": usage}


def _usage(text: str) -> dict[str, int]:
    words = len(text.split())
    return {"prompt_tokens": 100, "completion_tokens": words, "total_tokens": 100 + words}


def _completion(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return _document("chat.completion", [choice], _usage(text))


def _chunks(text: str) -> bytes:
    deltas = [{"role": "assistant", "content": ""}, *({"content": w + " "} for w in text.split())]
    ends = [None] * len(deltas) + ["stop"]
    choices = [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]
        for delta, end in zip([*deltas, {}], ends, strict=True)
    ]
    parts = [_document("chat.completion.chunk", each, None) for each in choices]
    parts.append(_document("chat.completion.chunk", [], _usage(text)))
    lines = [*map(json.dumps, parts), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


async def run(port: int, seconds: float) -> None:
    """Print the address, and serve until the process ends."""
    endpoint = Endpoint(seconds)
    server = await asyncio.start_server(endpoint.serve, "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextmanager
def running(ms: float, cpu: int | None) -> Iterator[str]:
    """Run the fake in its own process, and yield its address."""
    command = [sys.executable, __file__, "--ms", str(ms)]
    command += [] if cpu is None else ["--cpu", str(cpu)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--ms", type=float, default=200, help="latency of a call")
    parser.add_argument("--port", type=int, default=0, help="default: a free port")
    parser.add_argument("--cpu", type=int, help="CPU core to run on")
    args = parser.parse_args()
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    asyncio.run(run(args.port, args.ms / 1000))


if __name__ == "__main__":
    main()
