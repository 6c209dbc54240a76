"""Work distributed over processes on this machine.

A piece of work is a function of hopgate, by its name, and one message for it. Messages and results
are MessagePack; nothing is pickled. A worker that dies costs only the piece that it had.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from threading import TIMEOUT_MAX
from typing import IO, Any, Generic, NamedTuple, TypeVar

from hopgate.common.errors import reason
from hopgate.common.onnx import threads

TRIES = 3
"""How often a piece is tried if its worker dies."""
_OUT_OF_MEMORY = 3
"""Exit code of a process that needs more memory than it may have."""
_LENGTH_BYTES = 8
About = TypeVar("About")


class Piece(NamedTuple, Generic[About]):
    """Work for one worker.

    Attributes:
        name: Its name in error messages, such as `reading a.pdf`.
        message: The function's argument; MessagePack must be able to encode it.
        about: Returned with the result; it stays in this process.
    """

    name: str
    message: Any
    about: About


class ProcessLost(Exception):
    """A process died before it had answered; the message says how."""


class OutOfMemory(ProcessLost):
    """It needed more memory than it may have."""


class OwnProcess:
    """A process that does one piece of work at a time for this one, and may crash doing so.

    It starts with the first request, and again with the first after it died.

    Args:
        quiet: Whether its output is dropped. By default, stdout and stderr go to stderr.
        cores: Number of cores that it may use; None for those of this process.
        memory: Its maximum memory in bytes, on systems that can limit it; 0 for no limit.
    """

    def __init__(self, quiet: bool = False, cores: int | None = None, memory: int = 0) -> None:
        """Start nothing yet."""
        self._quiet, self._cores, self._memory = quiet, cores, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._closed, self._lock = False, threading.Lock()

    def call(self, function: str, message: Any, seconds: float = TIMEOUT_MAX) -> Any:
        """Let the process call a function.

        Args:
            function: Its name, `module:name`.
            message: Its argument; MessagePack must be able to encode it.
            seconds: Maximum time; the process is killed when it is over.

        Raises:
            ValueError: The function raised one.
            RuntimeError: The function raised another error, or the process was closed.
            TimeoutError: It took longer than `seconds`.
            ProcessLost: The process died.
        """
        process, began = self._running(), time.monotonic()
        assert process.stdin and process.stdout
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            with suppress(OSError):  # it has ended
                _write(process.stdin, encoded(function, message))
                if (reply := _read(process.stdout)) is not None:
                    return decoded(reply)
            process.communicate()
        finally:
            timer.cancel()
        code = process.returncode
        if time.monotonic() - began >= seconds:
            raise TimeoutError
        if code == _OUT_OF_MEMORY:
            raise OutOfMemory("out of memory")
        raise ProcessLost(f"killed by signal {-code}" if code < 0 else f"exit code {code}")

    def close(self) -> None:
        """Kill the process, whatever it is doing."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise RuntimeError("the workers were ended")
            if self._process is None or self._process.poll() is not None:
                self._process = self._started()
            return self._process

    def _started(self) -> subprocess.Popen[bytes]:
        """Start the process.

        It imports from where this one does (`-P`: from no other folder); Ctrl-C does not reach it.
        """
        cores = {} if self._cores is None else {"OMP_NUM_THREADS": str(self._cores)}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hopgate.common.workers", str(self._memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self._quiet else None,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **cores},
            start_new_session=True,
        )


def encoded(function: str, message: Any) -> bytes:
    """Return a request to call a function, `module:name`, with a message."""
    from msgspec import msgpack

    return msgpack.encode([function, message])


def answer(request: bytes, where: str = "") -> bytes:
    """Call the function, in the worker; return its result, or its error and `where` it was."""
    from msgspec import msgpack

    function, message = msgpack.decode(request)
    module, _, name = function.partition(":")
    try:
        return msgpack.encode({"result": getattr(import_module(module), name)(message)})
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as error:  # the process that asked reports it
        is_input = isinstance(error, ValueError)
        known = is_input or isinstance(error, RuntimeError)
        text = reason(error) if known else f"{type(error).__name__}: {reason(error)}"
        return msgpack.encode({"error": where + text, "is_input": is_input})


def decoded(reply: bytes) -> Any:
    """Return the result in an answer.

    Raises:
        ValueError: The function raised one.
        RuntimeError: The function raised another error.
    """
    from msgspec import msgpack

    found = msgpack.decode(reply)
    if "error" in found:
        raise (ValueError if found["is_input"] else RuntimeError)(found["error"])
    return found["result"]


class Workers(ABC):
    """Processes that do pieces of work; use `closing`.

    Attributes:
        count: How many pieces are done at a time.
        share_files: Whether they have the files of this machine.
    """

    share_files = True

    def __init__(self, count: int, at_once: int) -> None:
        """Start nothing yet; `at_once` is the most pieces that are waited for."""
        self.count = count
        self._waiting = ThreadPoolExecutor(at_once, "hopgate-worker")

    @abstractmethod
    def _call(self, function: str, message: Any) -> Any:
        """Let a worker call a function, see `OwnProcess.call`."""

    def submit(self, function: str, piece: Piece[Any]) -> Future[Any]:
        """Hand out a piece.

        Args:
            function: `module:name`.
            piece: The piece.

        Returns:
            The future result. It raises ValueError or RuntimeError if the function did, and
            RuntimeError if no worker survived the piece.
        """
        return self._waiting.submit(self._done, function, piece)

    def map(self, function: str, pieces: Iterable[Piece[About]]) -> Iterator[tuple[About, Any]]:
        """Hand out pieces and yield each one's `about` and result, in the order given.

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
        ends: list[str] = []
        while len(ends) < TRIES:
            try:
                return self._call(function, piece.message)
            except ProcessLost as lost:
                ends.append(str(lost))
        raise RuntimeError(
            f"{piece.name} ended its worker {TRIES} times ({', '.join(dict.fromkeys(ends))}): too "
            "little memory, perhaps; use fewer workers, or leave it out"
        )


class LocalWorkers(Workers):
    """Processes on this machine, which share its cores; each starts with its first piece."""

    def __init__(self, count: int) -> None:
        """Start nothing yet.

        Raises:
            ValueError: `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"{count} workers cannot do anything: use at least 1")
        super().__init__(count, count)
        self._processes = [OwnProcess(cores=max(1, threads() // count)) for _ in range(count)]
        self._free: SimpleQueue[OwnProcess] = SimpleQueue()
        for each in self._processes:
            self._free.put(each)

    def close(self) -> None:
        """Kill the processes, whatever they are doing."""
        for each in self._processes:
            each.close()
        super().close()

    def _call(self, function: str, message: Any) -> Any:
        process = self._free.get()
        try:
            return process.call(function, message)
        finally:
            self._free.put(process)


def _write(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_LENGTH_BYTES))
    stream.write(message)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """Read a message; None if the stream ends."""
    length = stream.read(_LENGTH_BYTES)
    message = stream.read(int.from_bytes(length))
    whole = len(length) == _LENGTH_BYTES and len(message) == int.from_bytes(length)
    return message if whole else None


def main() -> None:
    """Answer requests until the input ends, with the memory limit that the command line gives."""
    if memory := int(sys.argv[1]):
        with suppress(ImportError, OSError, ValueError):  # not every system can
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    requests: SimpleQueue[bytes] = SimpleQueue()

    def listen() -> None:
        while (request := _read(sys.stdin.buffer)) is not None:
            requests.put(request)
        os._exit(0)  # even in the middle of a piece: nobody waits for it

    with os.fdopen(os.dup(1), "wb") as replies:
        os.dup2(2, 1)  # a library's output is not a reply
        threading.Thread(target=listen, daemon=True).start()
        with suppress(OSError):
            while True:
                _write(replies, answer(requests.get()))
        os._exit(0)


if __name__ == "__main__":
    main()
