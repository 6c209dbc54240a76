"""Rates: the requests and tokens that each user may have in a minute, an hour or a day.

They are counted in this process, or with `HOPGATE_REDIS` for all processes with the same Redis.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from hopgate.common.errors import reason, require
from hopgate.common.threads import in_thread

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.strategies import RateLimiter

VARIABLE = "HOPGATE_REDIS"

log = logging.getLogger(__name__)


class RateReached(RuntimeError):
    """A user has reached a rate; `retry_after` says how many seconds it lasts."""

    fault = "rate_reached"

    def __init__(self, text: str, retry_after: int) -> None:
        """Say which rate, and when it ends."""
        super().__init__(f"{text}; ask again in {retry_after} s")
        self.retry_after = str(retry_after)


class Rates:
    """The rates of an operator; each user has counts of their own, and all others share one."""

    def __init__(self, requests: str = "", tokens: str = "") -> None:
        """Read rates such as `20/minute` or `100000/minute; 2000000/day`.

        Raises:
            ValueError: One cannot be read.
            RuntimeError: The extra is missing.
        """
        self._requests, self._tokens = _parsed("requests", requests), _parsed("tokens", tokens)

    async def enter(self, user: str | None) -> None:
        """Count a request.

        Raises:
            RateReached: The user may not have another one now.
        """
        if self._requests or self._tokens:
            await in_thread("rates", _counted, lambda: self._enter(user or ""))

    async def spend(self, user: str | None, tokens: int) -> None:
        """Count the tokens of a call; one that began within the rate may end above it."""
        if self._tokens and tokens > 0:
            await in_thread("rates", _counted, lambda: self._spend(user or "", tokens))

    def _enter(self, user: str) -> None:
        limiter = _limiter()
        for name, items in (("tokens", self._tokens), ("requests", self._requests)):
            for item in items:
                allowed = limiter.test if name == "tokens" else limiter.hit
                if not allowed(item, name, user):
                    end = limiter.get_window_stats(item, name, user).reset_time
                    most = f"this server allows {item.amount:,} {name} in {item.get_expiry():,} s"
                    raise RateReached(most, max(1, round(end - time.time())))

    def _spend(self, user: str, tokens: int) -> None:
        for item in self._tokens:
            _limiter().hit(item, "tokens", user, cost=tokens)


def _counted(count: Callable[[], None]) -> None:
    """Count, or warn if Redis is down: that must not stop answers."""
    try:
        count()
    except RateReached:
        raise
    except Exception as error:  # of Redis's client, which may not be installed
        log.warning("rates are not counted: %s", reason(error))


def _parsed(name: str, text: str) -> Sequence["RateLimitItem"]:
    if not text:
        return ()
    needed = ("limits", "redis") if os.environ.get(VARIABLE) else ("limits",)
    require(f"{name}_per_user", *needed, extra="limits")
    from limits import parse_many
    from limits.errors import ConfigurationError

    try:
        found = parse_many(text)
    except ValueError as error:
        raise ValueError(f"{name}_per_user is {text!r}; use a rate such as 20/minute") from error
    try:
        _limiter()
    except (ConfigurationError, ValueError):  # its text may contain a password
        raise ValueError(
            f"{VARIABLE} cannot be used; give an address such as redis://localhost:6379"
        ) from None
    return found


@cache
def _limiter() -> "RateLimiter":
    from limits.storage import storage_from_string
    from limits.strategies import FixedWindowRateLimiter

    address = os.environ.get(VARIABLE) or "memory://"
    waits: dict[str, float] = {"socket_timeout": 1, "socket_connect_timeout": 1}  # seconds
    is_redis = address.startswith("redis")
    return FixedWindowRateLimiter(storage_from_string(address, **(waits if is_redis else {})))
