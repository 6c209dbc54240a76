"""Web search for questions about the world after the index: Google through SerpAPI, or Wikipedia.

Off unless a request's `index` says `web:serpapi` or `web:wikipedia`: questions then leave the
machine. Answers are kept for a while, so that one question is not paid for twice.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any

from hopgate.retrievers.base import Hit, check_k, passage_id

if TYPE_CHECKING:
    from langchain_community.utilities import SerpAPIWrapper

TIMEOUT_S = 10.0
"""How long an engine may take to connect, and then between two pieces of its answer."""
CACHE_SECONDS = 3600.0
CACHE_ENTRIES = 256
MAX_QUERY_CHARACTERS = 300
"""A longer query is cut here, at a word: engines refuse or ignore more."""
WIKIPEDIA_URL = "https://en.wikipedia.org/w/api.php"
_MAX_RESULTS = 20
"""Most extracts that Wikipedia gives at a time."""
_EXTRACT_CHARACTERS = 1200
"""Most characters of an extract that Wikipedia gives."""
_NOTHING_FOUND = "hasn't returned any results"
"""Part of the error by which SerpAPI says that Google found nothing."""

Found = tuple[str, str, str]
"""Title, text and address of a result."""
Engine = Callable[[str, int], list[Found]]
"""Called with a query and the most results to give."""


class WebSearch:
    """A web search engine seen as a `Retriever`; a hit's score is 1 / rank.

    Args:
        engine: asks the web.
        now: a clock in seconds that never goes back.
    """

    def __init__(self, engine: Engine, now: Callable[[], float] = time.monotonic) -> None:
        """Keep the engine; nothing is asked yet."""
        self._engine = engine
        self._now = now
        self._kept: OrderedDict[tuple[str, int], tuple[float, list[Found]]] = OrderedDict()
        self._lock = Lock()

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` results for each query, see `Retriever.search`.

        What was found within the last hour is not asked for again; the last 256 answers are kept.

        Raises:
            RuntimeError: the engine cannot be reached, takes too long, or refuses.
        """
        check_k(k)
        return [self._hits(" ".join(query.split()), min(k, _MAX_RESULTS)) for query in queries]

    def _hits(self, query: str, k: int) -> list[Hit]:
        if not query:
            return []
        found = self._found(_cut(query), k)
        return [
            Hit(id=passage_id(title, text), title=title, text=text, score=1 / rank, source=address)
            for rank, (title, text, address) in enumerate(found, start=1)
        ]

    def _found(self, query: str, k: int) -> list[Found]:
        key, now = (query, k), self._now()
        with self._lock:
            if (kept := self._kept.get(key)) and now - kept[0] < CACHE_SECONDS:
                self._kept.move_to_end(key)
                return kept[1]
        found = self._engine(query, k)[:k]
        with self._lock:
            self._kept[key] = (now, found)
            self._kept.move_to_end(key)
            while len(self._kept) > CACHE_ENTRIES:
                self._kept.popitem(last=False)
        return found


def _cut(query: str) -> str:
    if len(query) <= MAX_QUERY_CHARACTERS:
        return query
    cut = query[: MAX_QUERY_CHARACTERS + 1]
    return cut.rpartition(" ")[0] or cut[:-1]


def wikipedia(query: str, k: int, url: str = "") -> list[Found]:
    """Search the English Wikipedia and give the beginnings of the pages found; needs no key.

    Args:
        query: what to search for.
        k: the most pages, at most 20.
        url: the wiki's api.php; by default `WIKIPEDIA_URL`.

    Raises:
        RuntimeError: Wikipedia cannot be reached, takes too long, or refuses.
    """
    import httpx

    asked = {
        "action": "query",
        "format": "json",
        "formatversion": "2",
        "generator": "search",
        "gsrsearch": query,
        "gsrlimit": str(k),
        "prop": "extracts|info",
        "inprop": "url",
        "exintro": "1",
        "explaintext": "1",
        "exlimit": "max",
        "exchars": str(_EXTRACT_CHARACTERS),
    }
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
        raise _failed("Wikipedia", f"it answered {error.response.status_code}") from None
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
    """Search Google through SerpAPI; the key is that of the environment's SERPAPI_API_KEY.

    A result's text is Google's snippet. An answer box comes first.

    Raises:
        ValueError: there is no key.
        RuntimeError: the extra `web` is missing, or SerpAPI cannot be reached, takes too long, or
            refuses.
    """
    wrapper = _serpapi_wrapper()
    asked = {**wrapper.get_params(query), "num": str(k), "output": "json"}
    search = wrapper.search_engine(asked)
    search.timeout = TIMEOUT_S
    try:
        response = search.get_response()
        answer = response.json()
        error = answer.get("error", "")
        if not error:
            response.raise_for_status()
    except Exception as fault:  # its text may hold the address, and that the key
        raise _failed("SerpAPI", _cause(fault)) from None
    if error and _NOTHING_FOUND not in error:
        raise _failed("SerpAPI", _line(str(error).replace(asked["api_key"], "…")))
    box = answer.get("answer_box") or {}
    results = [box] if isinstance(box, dict) else box
    results = [*results, *answer.get("organic_results", [])]
    found = [(_title(each), _snippet(each), str(each.get("link", ""))) for each in results]
    return [each for each in found if each[1]]


def _title(result: dict[str, Any]) -> str:
    return str(result.get("title") or "").strip()


def _snippet(result: dict[str, Any]) -> str:
    return str(result.get("answer") or result.get("snippet") or "").strip()


def _serpapi_wrapper() -> SerpAPIWrapper:
    check_serpapi()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*langchain-community.*")
            from langchain_community.utilities import SerpAPIWrapper

        return SerpAPIWrapper(serpapi_api_key=os.environ["SERPAPI_API_KEY"].strip())
    except ImportError as error:
        raise RuntimeError("web:serpapi needs more packages: pip install 'hopgate[web]'") from error


def check_serpapi() -> None:
    """Refuse, before anything is asked, a search without a key.

    Raises:
        ValueError: the environment has no SERPAPI_API_KEY.
    """
    if not os.environ.get("SERPAPI_API_KEY", "").strip():
        raise ValueError("web:serpapi needs a key: set SERPAPI_API_KEY, or use web:wikipedia")


def _failed(engine: str, cause: str) -> RuntimeError:
    return RuntimeError(f"web search with {engine} failed: {cause}")


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _cause(error: Exception) -> str:
    """Say what kind of fault it was, without addresses: they hold the key."""
    kind = type(error).__name__
    if "Timeout" in kind:
        return f"no answer within {TIMEOUT_S:g} s"
    if "Connect" in kind:
        return "it cannot be reached"
    return f"it gave no usable answer ({kind})"


ENGINES: dict[str, Engine] = {"serpapi": serpapi, "wikipedia": wikipedia}
