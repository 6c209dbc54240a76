"""Web search against engines on loopback; they answer in the recorded form, in other words."""

import json
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from hopgate.retrievers import web
from hopgate.retrievers.base import passage_id
from hopgate.retrievers.sources import check_source, open_source
from hopgate.retrievers.web import WebSearch, serpapi, wikipedia

KEY = "serp-key-5d1c77"
PAGES = {
    "batchcomplete": True,
    "query": {
        "pages": [
            {"pageid": 2, "title": "Harbour bakery", "index": 2, "extract": "It bakes bread.\n",
             "fullurl": "https://wiki.example/Harbour_bakery"},
            {"pageid": 1, "title": "Skerry Light", "index": 1, "extract": "Lit in 1811.",
             "fullurl": "https://wiki.example/Skerry_Light"},
            {"pageid": 3, "title": "Stub", "index": 3, "extract": ""},
        ]
    },
}  # fmt: skip
RESULTS = {
    "search_metadata": {"status": "Success"},
    "answer_box": {"type": "organic_result", "title": "Lit when?", "answer": "In 1811",
                   "link": "https://a.example"},
    "organic_results": [
        {"position": 1, "title": "Skerry Light", "link": "https://b.example",
         "snippet": "The light was first lit in 1811 ..."},
        {"position": 2, "title": "No snippet", "link": "https://c.example"},
        {"position": 3, "title": "Lights of the north", "link": "https://d.example",
         "snippet": "Eleven lights."},
    ],
}  # fmt: skip


class Loopback:
    """A server that answers every request with the same, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.agents: list[str] = []
        self.status, self.body = 200, b"{}"
        self.hangs = threading.Event()
        self.hangs.set()
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                loopback.asked.append({name: value for name, (value, *_) in query.items()})
                loopback.agents.append(self.headers["User-Agent"])
                loopback.hangs.wait(5)
                self.send_response(loopback.status)
                self.end_headers()
                self.wfile.write(loopback.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def says(self, document: object, status: int = 200) -> None:
        self.status, self.body = status, json.dumps(document).encode()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """An engine that stands for Wikipedia and SerpAPI both."""
    loopback = Loopback()
    monkeypatch.setattr(web, "WIKIPEDIA_URL", f"{loopback.url}/w/api.php")
    monkeypatch.setattr(web, "SERPAPI_URL", f"{loopback.url}/search.json")
    monkeypatch.setattr(web, "TIMEOUT_S", 0.5)
    monkeypatch.setenv("SERPAPI_API_KEY", KEY)
    serve = threading.Thread(target=loopback.server.serve_forever, args=(0.01,), daemon=True)
    serve.start()
    yield loopback
    loopback.hangs.set()
    loopback.server.shutdown()
    loopback.server.server_close()


def test_wikipedia_gives_passages_in_its_order(engine: Loopback) -> None:
    engine.says(PAGES)
    (hits,) = WebSearch(wikipedia).search(["When  was\nSkerry Light lit?"], k=5)
    assert [(h["title"], h["text"], h["score"]) for h in hits] == [
        ("Skerry Light", "Lit in 1811.", 1.0),
        ("Harbour bakery", "It bakes bread.", 0.5),
    ]
    assert hits[0]["id"] == passage_id("Skerry Light", "Lit in 1811.")
    assert hits[0]["source"] == "https://wiki.example/Skerry_Light"
    assert engine.asked[0]["gsrsearch"] == "When was Skerry Light lit?"
    assert engine.asked[0]["gsrlimit"] == "5"
    assert engine.agents[0].startswith("hopgate/")


def test_serpapi_gives_snippets_and_the_answer_box_first(
    engine: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    engine.says(RESULTS)
    caplog.set_level("DEBUG")
    (hits,) = WebSearch(serpapi).search(["When was Skerry Light lit?"], k=5)
    assert [(h["title"], h["text"], h["source"]) for h in hits] == [
        ("Lit when?", "In 1811", "https://a.example"),
        ("Skerry Light", "The light was first lit in 1811 ...", "https://b.example"),
        ("Lights of the north", "Eleven lights.", "https://d.example"),
    ]
    assert (engine.asked[0]["q"], engine.asked[0]["api_key"]) == ("When was Skerry Light lit?", KEY)
    assert engine.asked[0]["engine"] == "google"
    assert caplog.records and KEY not in caplog.text


def test_a_question_is_asked_once_an_hour(engine: Loopback) -> None:
    engine.says(PAGES)
    time = [0.0]
    search = WebSearch(wikipedia, now=lambda: time[0])
    first = search.search(["lit"], k=2)
    assert search.search([" lit "], k=2) == first
    assert len(engine.asked) == 1
    search.search(["lit"], k=1)
    assert len(engine.asked) == 2
    time[0] = web.CACHE_SECONDS
    search.search(["lit"], k=2)
    assert len(engine.asked) == 3


def test_a_long_query_is_cut_at_a_word_and_an_empty_one_asks_nothing(engine: Loopback) -> None:
    engine.says(PAGES)
    WebSearch(wikipedia).search(["lighthouse " * 9000], k=1)
    assert engine.asked[0]["gsrsearch"] == ("lighthouse " * 27).strip()
    assert WebSearch(wikipedia).search([" \n"], k=1) == [[]]
    assert len(engine.asked) == 1
    with pytest.raises(ValueError, match="k is 0"):
        WebSearch(wikipedia).search(["lit"], k=0)


def test_finding_nothing_is_not_a_failure(engine: Loopback) -> None:
    engine.says({"batchcomplete": True})
    assert WebSearch(wikipedia).search(["xyzzy"], k=5) == [[]]
    engine.says({"error": "Google hasn't returned any results for this query."})
    assert WebSearch(serpapi).search(["xyzzy"], k=5) == [[]]


@pytest.mark.parametrize("ask", [wikipedia, serpapi])
@pytest.mark.parametrize(
    ("document", "status", "cause"),
    [
        ({"error": f"Invalid key {KEY}"}, 200, "Invalid key"),
        ("nonsense", 200, "no usable response"),
        ([], 500, "HTTP status 500|no usable response"),
    ],
)
def test_a_failure_is_one_line_without_the_key(
    engine: Loopback, ask: web.Ask, document: Any, status: int, cause: str
) -> None:
    engine.says(document, status)
    assert_fails(ask, cause, keyless=ask is wikipedia)


@pytest.mark.parametrize("ask", [wikipedia, serpapi])
def test_an_engine_that_hangs_or_is_gone_fails_in_time(engine: Loopback, ask: web.Ask) -> None:
    engine.hangs.clear()
    assert_fails(ask, "no response within 0.5 s")
    engine.hangs.set()
    engine.server.shutdown()
    engine.server.server_close()
    assert_fails(ask, "cannot be reached")


def assert_fails(ask: Callable[[str, int], object], cause: str, *, keyless: bool = False) -> None:
    with pytest.raises(RuntimeError, match=f"web search with .* failed: .*({cause})") as failure:
        WebSearch(ask).search(["lit"], k=1)
    assert keyless or KEY not in "".join(traceback.format_exception(failure.value))
    assert "\n" not in str(failure.value)


def test_engines_are_chosen_by_name(engine: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.says(PAGES)
    check_source("web:wikipedia")
    search = open_source("web:wikipedia")
    assert open_source("web:wikipedia") is search
    assert search.search(["Skerry"], k=1)[0][0]["title"] == "Skerry Light"
    with pytest.raises(ValueError, match="index is 'web:altavista': use web:serpapi or web:wiki"):
        check_source("web:altavista")
    with pytest.raises(ValueError, match="mode 'bm25' is not available with web:wikipedia"):
        check_source("web:wikipedia", mode="bm25")
    monkeypatch.setenv("SERPAPI_API_KEY", " ")
    for refused in (check_source, open_source):
        with pytest.raises(ValueError, match="web:serpapi needs a key: set SERPAPI_API_KEY"):
            refused("web:serpapi")
