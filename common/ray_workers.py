"""Work distributed over the nodes of a Ray cluster, see `hopgate.common.workers`.

Ray carries only a function's name and MessagePack. But anyone who can reach a cluster can run code
on it, so keep it in a private network.
"""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
from importlib.metadata import version
from typing import Any

from hopgate.common.errors import one_line, require
from hopgate.common.workers import ProcessLost, Workers, answer, decoded, encoded

ANSWER_SECONDS = 20
"""Longest time until the head of a cluster answers; Ray itself tries for minutes."""
_POLL_SECONDS = 1.0
_AT_ONCE = 1024
"""Most pieces that are waited for, each by a thread of this process."""


class RayWorkers(Workers):
    """A Ray cluster: every CPU does a piece at a time, also those of nodes that join later.

    Nodes need the same hopgate, the same Python and the encoder, but no files of this machine.
    """

    share_files = False

    def __init__(self, address: str) -> None:
        """Connect.

        Args:
            address: `auto`, or `host:port` of the head; this machine must be one of its nodes.

        Raises:
            RuntimeError: The extra `ray` is missing, or the cluster cannot be used.
        """
        require("--ray", "ray", extra="ray")
        _check_alive(address)
        import ray

        try:
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
        except Exception as error:  # Ray's errors here have no common base class
            raise _unusable(address, one_line(error)[:300]) from error
        self._ray: Any = ray
        super().__init__(self._cpus(), _AT_ONCE)
        self._task = ray.remote(num_cpus=1, max_retries=0)(do)
        self._version, self._closed = version("hopgate"), False

    def _cpus(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        """Disconnect; the cluster drops its work."""
        self._closed = True
        super().close()
        self._ray.shutdown()

    def _call(self, function: str, message: Any) -> Any:
        errors = self._ray.exceptions
        self.count = self._cpus()  # nodes may have joined
        try:
            task = self._task.remote(encoded(function, message), self._version)
            while not self._ray.wait([task], timeout=_POLL_SECONDS)[0]:
                if self._closed:
                    raise RuntimeError("the workers were ended")
            reply: bytes = self._ray.get(task)
        except (errors.RayTaskError, errors.RaySystemError) as error:
            raise RuntimeError(f"a node of the Ray cluster failed: {_last_line(error)}") from error
        except errors.RayError as error:
            raise ProcessLost(f"Ray's {type(error).__name__}") from error
        return decoded(reply)


def do(request: bytes, expected: str) -> bytes:
    """Do a piece of work, on a node; `expected` is the version of hopgate that asks."""
    from msgspec import msgpack

    where = f"on the node {platform.node()}: "
    if (found := version("hopgate")) != expected:
        text = f"{where}hopgate is {found} there and {expected} here: install the same"
        return msgpack.encode({"error": text, "is_input": False})
    return answer(request, where)


def _check_alive(address: str) -> None:
    """Check that a cluster answers, in a process that can be given up."""
    given = [] if address == "auto" else ["--address", address]
    code = "from ray.scripts.scripts import cli; cli()"
    command = [sys.executable, "-c", code, "health-check", *given]
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    except subprocess.TimeoutExpired as error:
        raise _unusable(address, f"nothing answers within {ANSWER_SECONDS} s") from error
    except subprocess.CalledProcessError as error:
        raise _unusable(address, _last_line(error.stderr) or "nothing answers") from error


def _last_line(text: object) -> str:
    return (str(text).strip().splitlines() or [""])[-1].strip()


def _unusable(address: str, why: str) -> RuntimeError:
    return RuntimeError(
        f"--ray {address} cannot be used ({why}): start a cluster with `ray start --head`, or give "
        "the HOST:PORT of one that this machine belongs to"
    )
