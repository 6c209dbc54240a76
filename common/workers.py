"""Work shared out over processes on this machine; `ray_workers.py` does the same on a Ray cluster.

A piece of work is a function of hopgate, by its name, and one message for it. Messages and results
are MessagePack, so nothing is pickled. A worker that is killed costs only the piece that it had.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import IO, Any, Generic, NamedTuple, TypeVar

from hopgate.common.errors import reason
from hopgate.common.onnx import threads

TRIES = 3
"""How often a piece is tried whose worker does not survive."""
_LENGTH_BYTES = 8
_ENDING_SECONDS = 2.0
"""Time for a worker to end by itself, once its output has ended."""
About = TypeVar("About")


class Piece(NamedTuple, Generic[About]):
    """Work for one worker.

    Attributes:
        name: What it is, for error messages, such as `reading a.pdf`.
        message: What the function is called with; MessagePack must have a form for it.
        about: Returned with the result; it stays in this process.
    """

    name: str
    message: Any
    about: About


class WorkerLost(Exception):
    """A worker ended before it had answered; the message says how."""


class Workers(ABC):
    """Processes that do pieces of work; use `closing`.

    Attributes:
        share_files: Whether they have the files of this machine.
    """

    share_files = True

    def __init__(self, at_once: int) -> None:
        """Start nothing yet; `at_once` is the most pieces that are waited for."""
        self._waiting = ThreadPoolExecutor(at_once, "hopgate-worker")

    @property
    @abstractmethod
    def count(self) -> int:
        """How many pieces are done at a time."""

    @abstractmethod
    def _send(self, request: bytes) -> bytes:
        """Let a worker `answer`.

        Raises:
            WorkerLost: The worker ended first.
        """

    def submit(self, function: str, piece: Piece[Any]) -> Future[Any]:
        """Hand out a piece.

        Args:
            function: `module:name`.
            piece: The piece.

        Returns:
            What becomes the result. It raises ValueError or RuntimeError for an error of the
            function, or if no worker survived the piece.
        """
        return self._waiting.submit(self._done, function, piece)

    def map(self, function: str, pieces: Iterable[Piece[About]]) -> Iterator[tuple[About, Any]]:
        """Hand out pieces and yield what each is about and its result, in the order given.

        At most twice as many are taken as there are workers, so that any number of pieces fit in
        memory.
        """
        ahead: deque[tuple[About, Future[Any]]] = deque()
        for piece in pieces:
            ahead.append((piece.about, self.submit(function, piece)))
            while len(ahead) >= 2 * self.count:
                about, result = ahead.popleft()
                yield about, result.result()
        for about, result in ahead:
            yield about, result.result()

    def close(self) -> None:
        """End the work."""
        self._waiting.shutdown(cancel_futures=True)

    def _done(self, function: str, piece: Piece[Any]) -> Any:
        from msgspec import msgpack

        request = msgpack.encode([function, piece.message])
        ends: list[str] = []
        while len(ends) < TRIES:
            try:
                reply = msgpack.decode(self._send(request))
            except WorkerLost as lost:
                ends.append(str(lost))
                continue
            if "error" in reply:
                raise (ValueError if reply["is_input"] else RuntimeError)(reply["error"])
            return reply["result"]
        raise RuntimeError(
            f"{piece.name} ended its worker {TRIES} times ({', '.join(dict.fromkeys(ends))}): too "
            "little memory, perhaps; use fewer workers, or leave it out"
        )


def answer(request: bytes, where: str = "") -> bytes:
    """Do a piece of work, in the worker; return its result, or its error and `where` it was."""
    from msgspec import msgpack

    function, message = msgpack.decode(request)
    module, _, name = function.partition(":")
    try:
        return msgpack.encode({"result": getattr(import_module(module), name)(message)})
    except Exception as error:  # whatever it is, this process did not ask for the work
        is_input = isinstance(error, ValueError)
        known = is_input or isinstance(error, RuntimeError)
        text = reason(error) if known else f"{type(error).__name__}: {reason(error)}"
        return msgpack.encode({"error": where + text, "is_input": is_input})


class LocalWorkers(Workers):
    """Processes on this machine, which share its cores; each starts with its first piece."""

    def __init__(self, count: int) -> None:
        """Start nothing yet.

        Raises:
            ValueError: `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"{count} workers cannot do anything: use at least 1")
        super().__init__(count)
        self._count = count
        self._free: SimpleQueue[_Process] = SimpleQueue()
        self._processes = [_Process(max(1, threads() // count)) for _ in range(count)]
        for each in self._processes:
            self._free.put(each)

    @property
    def count(self) -> int:
        """How many processes there are."""
        return self._count

    def close(self) -> None:
        """Kill the processes, whatever they are doing."""
        for each in self._processes:
            each.close()
        super().close()

    def _send(self, request: bytes) -> bytes:
        process = self._free.get()
        try:
            return process.send(request)
        finally:
            self._free.put(process)


class _Process:
    """A process on this machine, seen from outside; started again when it has ended."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._process: subprocess.Popen[bytes] | None = None
        self._closed, self._lock = False, threading.Lock()
        self._errors = TemporaryFile()  # noqa: SIM115  # as long as the process may start again

    def send(self, request: bytes) -> bytes:
        process = self._running()
        assert process.stdin and process.stdout
        with suppress(OSError):  # it has ended
            _write(process.stdin, request)
            if (reply := _read(process.stdout)) is not None:
                return reply
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)  # so that it can say why
        process.kill()
        process.communicate()
        code = process.returncode
        if code < 0:
            raise WorkerLost(f"killed by signal {-code}")
        raise WorkerLost(f"exit code {code}: {self._last_words()}")

    def _last_words(self) -> str:
        """Return the last line that the process wrote to stderr, and forget all of it."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        self._errors.truncate(0)
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "no message")

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            self._errors.close()

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise RuntimeError("the workers were ended")
            if self._process is None or self._process.poll() is not None:
                self._process = _started(self._cores, self._errors)
            return self._process


def _started(cores: int, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a worker, which imports from where this process does; Ctrl-C does not reach it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hopgate.common.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": str(cores),
        },
        start_new_session=True,
    )


def _write(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_LENGTH_BYTES))
    stream.write(message)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """Read a message; None if the stream ends."""
    length = stream.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    message = stream.read(int.from_bytes(length))
    return message if len(message) == int.from_bytes(length) else None


def main() -> None:
    """Answer requests until the input ends, or whoever asks is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        while (request := _read(sys.stdin.buffer)) is not None:
            requests.put(request)
        os._exit(0)  # even in the middle of a piece: nobody waits for it

    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # what a library prints is no reply
        threading.Thread(target=listen, daemon=True).start()
        try:
            while True:
                _write(replies, answer(requests.get()))
        except Exception as error:
            print(f"{type(error).__name__}: {reason(error)}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(1)  # while `listen` waits for input, an ordinary end would abort


if __name__ == "__main__":
    main()
