"""Web search, for questions that no index of yours answers: Google through SerpAPI, or Wikipedia.

Off unless a request's `index` is `web:serpapi` or `web:wikipedia`: queries then leave the machine.
Results are cached for up to an hour, so that a repeated query is not paid for twice.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from hopgate.common.errors import one_line
from hopgate.retrievers.base import Hit, check_k, passage_id

TIMEOUT_S = 10.0
"""Seconds to wait for an engine to connect, and for each part of its response."""
CACHE_SECONDS = 3600.0
CACHE_ENTRIES = 256
MAX_QUERY_CHARACTERS = 300
"""Longer queries are cut at a word: engines refuse or ignore the rest."""
WIKIPEDIA_URL = "https://en.wikipedia.org/w/api.php"
SERPAPI_URL = "https://serpapi.com/search.json"
_MAX_RESULTS = 20
"""Maximum number of extracts in one response of Wikipedia."""
_EXTRACT_CHARACTERS = 1200
"""Maximum length of an extract of Wikipedia."""
_NOTHING_FOUND = "hasn't returned any results"
"""Part of SerpAPI's error message when Google finds nothing."""
_MAX_CAUSE_CHARACTERS = 200

Found = tuple[str, str, str]
"""Title, text and URL of a result."""
Ask = Callable[[str, int], list[Found]]
"""Called with a query and the maximum number of results."""


class WebSearch:
    """A web search engine as a `Retriever`; a hit's score is 1 / rank.

    Args:
        engine: Searches the web.
        now: A monotonic clock, in seconds.
    """

    def __init__(self, engine: Ask, now: Callable[[], float] = time.monotonic) -> None:
        """Keep the engine; nothing is searched yet."""
        self._engine, self._now = engine, now
        self._known = lru_cache(CACHE_ENTRIES)(self._ask)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` results for each query, see `Retriever.search`.

        Results are kept until the hour on the clock ends, for 256 queries.

        Raises:
            RuntimeError: The engine cannot be reached, takes too long, or refuses.
        """
        check_k(k)
        return [self._hits(" ".join(query.split()), min(k, _MAX_RESULTS)) for query in queries]

    def _hits(self, query: str, k: int) -> list[Hit]:
        if not query:
            return []
        found = self._known(_cut(query), k, self._now() // CACHE_SECONDS)
        return [
            Hit(id=passage_id(title, text), title=title, text=text, score=1 / rank, source=address)
            for rank, (title, text, address) in enumerate(found, start=1)
        ]

    def _ask(self, query: str, k: int, hour: float) -> list[Found]:
        """Ask the engine, once for each argument."""
        return self._engine(query, k)[:k]


def _cut(query: str) -> str:
    if len(query) <= MAX_QUERY_CHARACTERS:
        return query
    cut = query[: MAX_QUERY_CHARACTERS + 1]
    return cut.rpartition(" ")[0] or cut[:-1]


def wikipedia(query: str, k: int) -> list[Found]:
    """Search the English Wikipedia and return the introductions of up to 20 pages; needs no key.

    Raises:
        RuntimeError: Wikipedia cannot be reached, takes too long, or refuses.
    """
    asked = {"action": "query", "format": "json", "formatversion": "2"}
    asked |= {"generator": "search", "gsrsearch": query, "gsrlimit": str(k)}
    asked |= {"prop": "extracts|info", "inprop": "url", "exintro": "1", "explaintext": "1"}
    asked |= {"exlimit": "max", "exchars": str(_EXTRACT_CHARACTERS)}
    pages = _response("Wikipedia", WIKIPEDIA_URL, asked).get("query", {}).get("pages", [])
    return [
        (page["title"], page["extract"].strip(), page.get("fullurl", ""))
        for page in sorted(pages, key=lambda page: page["index"])
        if page.get("extract", "").strip()
    ]


def serpapi(query: str, k: int) -> list[Found]:
    """Search Google through SerpAPI, with the key in the environment's SERPAPI_API_KEY.

    A result's text is Google's snippet. An answer box comes first.

    Raises:
        ValueError: There is no key.
        RuntimeError: SerpAPI cannot be reached, takes too long, or refuses.
    """
    logging.getLogger("httpx").addFilter(_has_no_key)  # it logs the address of every request
    asked = {"engine": "google", "q": query, "num": str(k), "api_key": _serpapi_key()}
    asked |= {"gl": "us", "hl": "en", "google_domain": "google.com"}
    answer = _response("SerpAPI", SERPAPI_URL, asked)
    box = answer.get("answer_box") or {}
    results = [box] if isinstance(box, dict) else box
    found = []
    for each in [*results, *answer.get("organic_results", [])]:
        text = str(each.get("answer") or each.get("snippet") or "").strip()
        title, link = str(each.get("title") or "").strip(), str(each.get("link", ""))
        found += [(title, text, link)] if text else []
    return found


def _response(engine: str, url: str, asked: dict[str, str]) -> dict[str, Any]:
    """Return the response of an engine.

    Raises:
        RuntimeError: There is none, or it is an error; the message has no URL and no key.
    """
    import httpx

    agent, answer = {"User-Agent": f"hopgate/{version('hopgate')} (python-httpx)"}, None
    try:
        response = httpx.get(
            url, params=asked, headers=agent, timeout=TIMEOUT_S, follow_redirects=True
        )
        with suppress(ValueError):
            answer = response.json()
    except httpx.TimeoutException:
        cause = f"no response within {TIMEOUT_S:g} s"
    except httpx.HTTPError as error:
        cause = f"it cannot be reached ({type(error).__name__})"
    else:
        cause = f"no usable response (HTTP status {response.status_code})"
        if isinstance(answer, dict):
            refusal = answer.get("error", "" if response.is_success else cause)
            if isinstance(refusal, dict):
                refusal = refusal.get("info")
            if not refusal or _NOTHING_FOUND in str(refusal):
                return answer
            cause = str(refusal).replace(asked.get("api_key", url), "…")
    cause = one_line(cause)[:_MAX_CAUSE_CHARACTERS]
    raise RuntimeError(f"web search with {engine} failed: {cause}")


def _has_no_key(record: logging.LogRecord) -> bool:
    return "api_key=" not in record.getMessage()


def _serpapi_key() -> str:
    if key := os.environ.get("SERPAPI_API_KEY", "").strip():
        return key
    raise ValueError("web:serpapi needs a key: set SERPAPI_API_KEY, or use web:wikipedia")


ENGINES = {"serpapi": WebSearch(serpapi), "wikipedia": WebSearch(wikipedia)}


def open_web(name: str) -> WebSearch:
    """Return the web search with a name such as `web:wikipedia`.

    Raises:
        ValueError: There is no such engine, or no key for it.
    """
    if not (found := ENGINES.get(name.removeprefix("web:"))):
        known = " or ".join(f"web:{each}" for each in ENGINES)
        raise ValueError(f"index is {name!r}: use {known}")
    if name == "web:serpapi":
        _serpapi_key()
    return found
