"""Limits how much of a reply is read from an OpenAI-compatible endpoint, which may never stop.

Imports openai, so it is imported when the first model is loaded.
"""

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any

from openai import DefaultAioHttpClient, OpenAIError

HEADROOM_BYTES = 2 * 2**20
"""Allowance for any reply besides its tokens: an error as a web page, sources, content filters."""
TOKEN_BYTES = 2 * 2**10
"""Of a token: a streamed chunk with Azure's content filters has 700 bytes."""
LOGPROBS_BYTES = 8 * 2**10
"""More for the 20 likeliest tokens and their own: each is an object, of 90 bytes or, indented, 300."""


class ReplyTooLong(OpenAIError):
    """An endpoint sent more than a reply can have.

    The clients of openai retry after other errors, but not after their own.
    """


_allowed: ContextVar[tuple[int, int]] = ContextVar("allowed", default=(0, HEADROOM_BYTES))
"""Maximum tokens of a reply, and the bytes that may be read of it."""


@contextmanager
def allowing(tokens: int, *, logprobs: bool) -> Iterator[None]:
    """Limit the replies that are read inside this context.

    Args:
        tokens: Maximum tokens of a reply, with a reasoning model's thoughts.
        logprobs: Whether they come with the likeliest tokens at each position.
    """
    size = HEADROOM_BYTES + tokens * (TOKEN_BYTES + LOGPROBS_BYTES * logprobs)
    token = _allowed.set((tokens, size))
    try:
        yield
    finally:
        _allowed.reset(token)


def client(**options: Any) -> DefaultAioHttpClient:
    """Return an HTTP client that stops reading a reply when it exceeds what is allowed.

    Many calls at once cost far less processor time over aiohttp than over httpx.
    """
    return DefaultAioHttpClient(event_hooks={"response": [_bound]}, **options)


async def _bound(response: Any) -> None:
    """Count the bytes of a response as they arrive and after decompression.

    An endless stream may decompress to nothing.
    """
    response.aiter_raw = _counted(response, response.aiter_raw)
    response.aiter_bytes = _counted(response, response.aiter_bytes)


def _counted(
    response: Any, read: Callable[..., AsyncGenerator[bytes, None]]
) -> Callable[..., AsyncGenerator[bytes, None]]:
    tokens, most = _allowed.get()

    async def parts(*options: Any, **named: Any) -> AsyncGenerator[bytes, None]:
        size = 0
        async with aclosing(read(*options, **named)) as given:
            async for part in given:
                size += len(part)
                if size > most:
                    raise ReplyTooLong(
                        f"its reply has HTTP status {response.status_code} and is far longer than "
                        f"{tokens} tokens can be, so it was not read to its end; an endpoint must "
                        "obey max_tokens"
                    )
                yield part

    return parts
