"""Web search, for questions that no index of yours answers: Google through SerpAPI, or Wikipedia.

Off unless a request's `index` is `web:serpapi` or `web:wikipedia`: queries then leave the machine.
Results are cached for up to an hour, so that a repeated query is not paid for twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version

from hopgate.common.errors import one_line, require
from hopgate.retrievers.base import Hit, check_k, passage_id

TIMEOUT_S = 10.0
"""Seconds to wait for an engine to connect, and for each part of its response."""
CACHE_SECONDS = 3600.0
CACHE_ENTRIES = 256
MAX_QUERY_CHARACTERS = 300
"""Longer queries are cut at a word: engines refuse or ignore the rest."""
WIKIPEDIA_URL = "https://en.wikipedia.org/w/api.php"
_MAX_RESULTS = 20
"""Maximum number of extracts in one response of Wikipedia."""
_EXTRACT_CHARACTERS = 1200
"""Maximum length of an extract of Wikipedia."""
_NOTHING_FOUND = "hasn't returned any results"
"""Part of SerpAPI's error message when Google finds nothing."""

Found = tuple[str, str, str]
"""Title, text and URL of a result."""
Engine = Callable[[str, int], list[Found]]
"""Called with a query and the maximum number of results."""


class WebSearch:
    """A web search engine as a `Retriever`; a hit's score is 1 / rank.

    Args:
        engine: Searches the web.
        now: A monotonic clock, in seconds.
    """

    def __init__(self, engine: Engine, now: Callable[[], float] = time.monotonic) -> None:
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


def wikipedia(query: str, k: int, url: str = "") -> list[Found]:
    """Search the English Wikipedia and return the introductions of the pages; needs no key.

    Args:
        query: Search text.
        k: Maximum number of pages, up to 20.
        url: The wiki's api.php; by default `WIKIPEDIA_URL`.

    Raises:
        RuntimeError: Wikipedia cannot be reached, takes too long, or refuses.
    """
    import httpx

    asked = {"action": "query", "format": "json", "formatversion": "2"}
    asked |= {"generator": "search", "gsrsearch": query, "gsrlimit": str(k)}
    asked |= {"prop": "extracts|info", "inprop": "url", "exintro": "1", "explaintext": "1"}
    asked |= {"exlimit": "max", "exchars": str(_EXTRACT_CHARACTERS)}
    agent = {"User-Agent": f"hopgate/{version('hopgate')} (python-httpx)"}
    try:
        response = httpx.get(
            url or WIKIPEDIA_URL,
            params=asked,
            headers=agent,
            timeout=TIMEOUT_S,
            follow_redirects=True,
        )
        answer = response.raise_for_status().json()
        pages = answer.get("query", {}).get("pages", [])
    except httpx.HTTPStatusError as error:
        raise _failed("Wikipedia", f"HTTP status {error.response.status_code}") from None
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        raise _failed("Wikipedia", _cause(error)) from None
    if refusal := answer.get("error"):
        if isinstance(refusal, dict):
            refusal = refusal.get("info")
        raise _failed("Wikipedia", _line(str(refusal)))
    pages = sorted(pages, key=lambda page: page["index"])
    return [
        (page["title"], page["extract"].strip(), page.get("fullurl", ""))
        for page in pages
        if page.get("extract", "").strip()
    ]


def serpapi(query: str, k: int) -> list[Found]:
    """Search Google through SerpAPI, with the key in the environment's SERPAPI_API_KEY.

    A result's text is Google's snippet. An answer box comes first.

    Raises:
        ValueError: There is no key.
        RuntimeError: The extra `web` is missing, or SerpAPI cannot be reached, takes too long, or
            refuses.
    """
    check_serpapi()
    try:
        from serpapi import Client
    except ImportError as older:  # google-search-results has a module of the same name
        raise RuntimeError(
            "web:serpapi needs SerpAPI's newer client: pip uninstall google-search-results, then "
            "pip install --force-reinstall 'hopgate[web]'"
        ) from older
    key = os.environ["SERPAPI_API_KEY"].strip()
    try:
        answer = Client(api_key=key, timeout=TIMEOUT_S).search(
            engine="google", q=query, num=str(k), gl="us", hl="en", google_domain="google.com"
        )
        error = answer.get("error", "")
    except Exception as fault:  # its message may contain the URL, and that the key
        refusal = getattr(fault, "error", None)
        cause = _line(str(refusal).replace(key, "…")) if refusal else _cause(fault)
        raise _failed("SerpAPI", cause) from None
    if error and _NOTHING_FOUND not in error:
        raise _failed("SerpAPI", _line(str(error).replace(key, "…")))
    box = answer.get("answer_box") or {}
    results = [box] if isinstance(box, dict) else box
    results = [*results, *answer.get("organic_results", [])]
    found = []
    for each in results:
        text = str(each.get("answer") or each.get("snippet") or "").strip()
        title, link = str(each.get("title") or "").strip(), str(each.get("link", ""))
        found += [(title, text, link)] if text else []
    return found


def check_serpapi() -> None:
    """Check that SerpAPI's client is installed and that there is a key.

    Raises:
        ValueError: The environment has no SERPAPI_API_KEY.
        RuntimeError: The extra `web` is missing.
    """
    if not os.environ.get("SERPAPI_API_KEY", "").strip():
        raise ValueError("web:serpapi needs a key: set SERPAPI_API_KEY, or use web:wikipedia")
    require("web:serpapi", "serpapi", extra="web")


def _failed(engine: str, cause: str) -> RuntimeError:
    return RuntimeError(f"web search with {engine} failed: {cause}")


def _line(text: str) -> str:
    return one_line(text)[:200]


def _cause(error: Exception) -> str:
    """Describe an error without URLs: they contain the key."""
    kind = type(error).__name__
    if "Timeout" in kind:
        return f"no response within {TIMEOUT_S:g} s"
    if "Connect" in kind:
        return "it cannot be reached"
    return f"no usable response ({kind})"


ENGINES: dict[str, Engine] = {"serpapi": serpapi, "wikipedia": wikipedia}


def check_web(name: str) -> None:
    """Check a name such as `web:wikipedia`, and the key it needs.

    Raises:
        ValueError: There is no such engine, or no key for it.
    """
    if name.removeprefix("web:") not in ENGINES:
        known = " or ".join(f"web:{each}" for each in ENGINES)
        raise ValueError(f"index is {name!r}: use {known}")
    if name == "web:serpapi":
        check_serpapi()


def open_web(name: str) -> WebSearch:
    """Return the web search with a name such as `web:wikipedia`."""
    return WebSearch(ENGINES[name.removeprefix("web:")])
