"""Encoders behind an API: any embeddings of LangChain's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common.errors import reason

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from numpy.typing import NDArray
    from tenacity import RetryCallState

BATCH = 512
"""Most passages in a request: some 130,000 tokens, below OpenAI's limit of 300,000."""
WAIT_S = 60.0
"""Longest wait between two tries where the provider names none."""
TIMEOUT_S = 60.0
BUSY_TRIES = 12
"""Tries of a build while the provider answers 429."""


class EncoderDownError(RuntimeError):
    """The provider of an encoder did not answer, so that only words can be searched."""


class ProviderModel:
    """A provider's embeddings, scaled to length 1.

    Its attributes and `encode` are those of `hopgate.retrievers.encoders.Model`; `max_tokens` is 0,
    since only the provider knows it.

    Args:
        name: `PROVIDER:NAME`, for messages.
        embeddings: LangChain's client.
        known: The dimension of its vectors; None to ask for it with a first text.
    """

    pooling, normalize, max_tokens, prompts = "provider", True, 0, ("", "")

    def __init__(self, name: str, embeddings: Embeddings, known: int | None = None) -> None:
        """Keep the client; nothing is sent yet."""
        self._name, self._embeddings, self._known = name, embeddings, known
        own = getattr(embeddings, "chunk_size", None) or getattr(embeddings, "batch_size", None)
        self.batch = min(own or BATCH, BATCH)

    @cached_property
    def dimension(self) -> int:
        """The length of the vectors."""
        return self._known or len(self._ask(self._embeddings.embed_query, "dimension", tries=2))

    def encode(self, texts: Sequence[str], prefix: str, queries: bool) -> NDArray[np.float32]:
        """Return vectors, [texts, dimension]; a build waits while the provider asks it to.

        Raises:
            EncoderDownError: The provider did not answer, or refused.
            ValueError: Its vectors have another length than before.
        """
        given, found = [f"{prefix}{text}" for text in texts], list[list[float]]()
        for start in range(0, len(given), self.batch):
            some = given[start : start + self.batch]
            if queries:
                found += [self._ask(self._embeddings.embed_query, each, tries=2) for each in some]
            else:
                found += self._ask(self._embeddings.embed_documents, some, tries=BUSY_TRIES)
        lengths = set(map(len, found))
        if lengths != {self.dimension} or len(found) != len(texts):
            raise ValueError(
                f"encoder {self._name} returned vectors of {sorted(lengths)} dimensions, not "
                f"{self.dimension}: if the model was replaced, build the index again"
            )
        vectors = np.array(found, dtype=np.float32)
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _ask(self, call: Callable[[Any], Any], given: Any, *, tries: int) -> Any:
        from tenacity import Retrying, retry_if_exception, stop_after_attempt

        retrying = Retrying(
            retry=retry_if_exception(lambda error: _status(error) == 429),
            wait=_wait,
            stop=stop_after_attempt(tries),
            reraise=True,
        )
        with _explained(self._name):
            return retrying(call, given)


def init_model(name: str, known: int | None = None) -> ProviderModel:
    """Return the encoder `PROVIDER:NAME`, through LangChain's `init_embeddings`.

    Raises:
        ValueError: LangChain knows no such provider.
        RuntimeError: Its package or its key is missing.
    """
    from langchain.embeddings import init_embeddings

    options: dict[str, Any] = {}
    if name.startswith("openai:"):  # whose client fetches a tokenizer and sends token ids, which
        options = {"check_embedding_ctx_length": False, "timeout": TIMEOUT_S}  # others do not take
    try:
        if name.startswith("huggingface:"):
            raise ValueError("use the model's own name, such as org/name")
        return ProviderModel(name, init_embeddings(name, **options), known)
    except ValueError as error:
        raise ValueError(
            f"encoder {name!r} cannot be made: {reason(error, 600)} (an app "
            "passes its own embeddings as `encoder=`)"
        ) from error
    except Exception as error:  # ImportError, or the provider's own for a missing key
        raise RuntimeError(f"encoder {name} cannot be used: {reason(error, 300)}") from error


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of a provider's error, whatever its client calls it."""
    response = getattr(error, "response", None)
    found = [getattr(error, name, None) for name in ("status_code", "code")]
    found.append(getattr(response, "status_code", None))
    return next((each for each in found if isinstance(each, int)), None)


def _wait(state: RetryCallState) -> float:
    """Return how long to wait: as the provider says, else longer each time."""
    error = state.outcome and state.outcome.exception()
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return float(headers.get("retry-after", ""))
    except ValueError:
        return min(WAIT_S, 2.0**state.attempt_number)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Say what to do about a provider's error, without its text where that may repeat the key."""
    try:
        yield
    except Exception as error:
        status = _status(error)
        provider = name.partition(":")[0]
        if status in (401, 403):
            said = f"{provider} refused the key ({status}): check its environment variable"
        elif status == 429:
            said = f"{provider} is busy or the quota is used up (429): try again later"
        elif status == 404:
            said = f"{provider} has no such model (404): check the name"
        else:
            said = f"{reason(error, 200)}: check the connection, and the address of {provider}"
        raise EncoderDownError(f"encoder {name}: {said}") from error
