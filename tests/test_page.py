"""The page, in a real Chromium, served by a real `langgraph dev`."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from doubles import by_task
from fake_openai import FakeOpenAI
from langgraph_dev import CONFIG, Server, free_port, start, stop
from pydantic import TypeAdapter

from hopgate import Context
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import build_from_passages
from hopgate.server.tokens import digest

pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
from browser import SECONDS, Watch, chromium
from playwright.sync_api import Locator, Page, Route, expect

QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "The designer of Skerrane Light was Ilsabet Corrane."
REPLIES: dict[str, Any] = {
    "gate": "[Yes]",
    "reason": [FACT, "So the answer is: Lissmere."],
    "decompose": "1. Who designed Skerrane Light?\n2. Where was {1} born?",
    "sub_answer": ["Ilsabet Corrane", "Lissmere"],
    "answer": "She was born in Lissmere [1].",
    "direct": "Nobody knows",
}

BUSY = {"detail": "the thread is answering a question"}

expect.set_options(timeout=SECONDS * 1000)


class Shown(NamedTuple):
    """An open page, with its requests and errors."""

    page: Page
    watch: Watch

    def open(self, url: str, width: int = 1280) -> None:
        self.page.goto("about:blank")
        self.watch.clear()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.goto(url)

    def set(self, **settings: Any) -> None:
        expect(self.page.locator("body")).not_to_have_class("loading")
        if self.page.locator("#settings").get_attribute("open") is None:
            self.page.locator("#settings > summary").click()
        for name, value in settings.items():
            field = self.page.locator(f"#settings [name={name}]")
            if not field.is_visible():
                self.page.locator(".more > summary").click()
            if field.evaluate("field => field.tagName") == "SELECT":
                field.select_option(str(value))
            else:
                field.fill(str(value))

    def ask(self, question: str = QUESTION, **settings: Any) -> Locator:
        """Ask, wait for the end, and return the turn."""
        turn = self.put(question, **settings)
        expect(turn).to_have_class(re.compile(r"\bfinished\b"))
        return turn

    def put(self, question: str, **settings: Any) -> Locator:
        self.set(**settings)
        turns = self.page.locator(".turn")
        count = turns.count()
        self.page.get_by_label("Question", exact=True).fill(question)
        self.page.keyboard.press("Enter")
        return turns.nth(count)

    def overflow(self) -> int:
        """The number of pixels by which the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@contextmanager
def routed(page: Page, url: str, handler: Callable[[Route], Any]) -> Iterator[None]:
    """Let a handler answer requests to an address instead of the server."""
    page.route(url, handler)
    yield
    page.unroute(url)


@pytest.fixture(scope="module")  # its event loop would be in the way of other tests
def window() -> Iterator[Shown]:
    """One browser window for all tests; each test starts on a blank page."""
    with chromium() as browser:
        page = browser.new_page()
        yield Shown(page, Watch(page))


@pytest.fixture
def server(window: Shown, dev_server: Server) -> Server:
    """The server of the page, if there is a browser to open it."""
    return dev_server


@pytest.fixture
def shown(window: Shown, server: Server, fake: FakeOpenAI) -> Iterator[Shown]:
    """The page; a test must cause no error, no warning and no request to another address."""
    fake.answers(by_task(**REPLIES))
    window.open(f"{server.url}/hopgate/")
    yield window
    assert window.watch.problems == []
    assert all(each.startswith(f"{server.url}/") for each in window.watch.requests)


def test_the_settings_follow_the_server_s_schema(shown: Shown) -> None:
    fields = TypeAdapter(Context).json_schema()["properties"]
    controls = shown.page.locator("#settings [name]")
    expect(controls).to_have_count(len(fields))
    drawn = controls.evaluate_all(
        """all => all.map(each => [each.name, [
            document.getElementById(each.getAttribute("aria-describedby")).textContent,
            [...(each.options ?? [])].map(option => option.value),
            each.type === "checkbox" ? each.checked : (each.value ?? ""),
        ]])"""
    )
    for name, control in drawn:
        field = fields[name]
        default = field["default"]
        if not isinstance(default, bool):
            default = "" if default in (None, {}, []) else str(default)
        default = "0.5" if name == "alpha" else default  # until it is moved, the profile's own
        assert control == [field["description"], field.get("enum", []), default]
    shown.page.locator("[name=gate]").focus()
    expect(shown.page.locator(".help")).to_have_text(fields["gate"]["description"])


def asked_where(shown: Shown) -> Any:
    """Ask, and return the filter that was sent."""
    with shown.page.expect_request(re.compile(r"/runs/stream$")) as sent:
        shown.ask()
    return sent.value.post_data_json["context"].get("where")


def test_a_filter_is_a_form(shown: Shown) -> None:
    shown.set(strategy="single", hop_k=5)  # which opens the other settings
    rows = shown.page.locator("fieldset[name=where] .row")

    def add(field: str, *values: str) -> None:
        shown.page.get_by_role("button", name="Add a condition").click()
        row = rows.last
        expect(row.get_by_label("Field")).to_be_focused()
        row.get_by_label("Field").fill(field)
        if len(values) == 2:
            row.get_by_label("Compare").select_option("from … to")
        for box, value in zip(row.locator("input:visible").all()[1:], values, strict=True):
            box.fill(value)

    add("title", "Skerrane Light")
    add("title", "Farrick Head Lighthouse")
    assert asked_where(shown) == {"title": ["Skerrane Light", "Farrick Head Lighthouse"]}
    add("date", "2024-01-01", "")
    add("size", "-1.5", "100")
    add("", "")
    rows.nth(1).get_by_role("button", name="Remove the condition").click()
    ranges = {"date": {"from": "2024-01-01"}, "size": {"from": -1.5, "to": 100}}
    assert asked_where(shown) == {"title": "Skerrane Light", **ranges}
    assert shown.overflow() <= 0
    add("until", "yesterday", "")
    expect(shown.put(QUESTION)).to_contain_text("where.until is {'from': 'yesterday'}: use")
    expect(shown.page.locator("fieldset[name=where]")).to_have_attribute("aria-invalid", "true")
    shown.watch.problems.clear()
    shown.page.get_by_role("button", name="Back to defaults").click()
    assert rows.count() == 0
    assert asked_where(shown) is None


RECTANGLES = """all => all.map(each => each.getBBox())
    .map(({ x, y, width, height }) => [x, y, x + width, y + height])"""


def overlap(a: list[float], b: list[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_every_node_and_edge_of_the_graph_is_drawn(shown: Shown, server: Server) -> None:
    graph = httpx.get(f"{server.url}/assistants/hopgate/graph?xray=true").json()
    drawing = shown.page.locator("#drawing svg")
    nodes, edges = drawing.locator("[data-node]"), drawing.locator("[data-edge]")
    expect(nodes).to_have_count(len(graph["nodes"]))
    ids = nodes.evaluate_all("all => all.map(each => each.dataset.node)")
    assert {*ids} == {node["id"] for node in graph["nodes"]}
    ends = edges.evaluate_all("all => all.map(each => each.dataset.edge)")
    assert sorted(ends) == sorted(f"{each['source']} {each['target']}" for each in graph["edges"])
    assert all(edges.locator("path").evaluate_all("all => all.map(e => e.getTotalLength() > 5)"))
    places = nodes.locator("rect, circle").evaluate_all(RECTANGLES)
    assert not any(overlap(a, b) for a, b in combinations(places, 2))
    _, _, width, height = map(float, (drawing.get_attribute("viewBox") or "").split())
    for left, top, right, bottom in [*places, *edges.locator("path").evaluate_all(RECTANGLES)]:
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
    (box,) = drawing.locator(".box rect").evaluate_all(RECTANGLES)
    inside = {node for node, place in zip(ids, places, strict=True) if overlap(box, place)}
    assert inside == {node for node in ids if node.startswith("multihop:")}


def test_the_path_of_a_run_is_highlighted(shown: Shown) -> None:
    shown.ask(model="openai:fake", strategy="multi", multihop="decompose")
    path = [
        *("__start__ start", "start gate", "gate route", "route multihop:__start__"),
        *("multihop:__start__ multihop:decompose", "multihop:decompose multihop:retrieve"),
        *("multihop:retrieve multihop:sub_answer", "multihop:sub_answer multihop:retrieve"),
        *("multihop:sub_answer multihop:__end__", "multihop:__end__ generate", "generate __end__"),
    ]
    nodes = shown.page.locator("#drawing [data-node].done")
    lit = nodes.evaluate_all("all => all.map(each => each.dataset.node)")
    assert {*lit} == {name for edge in path for name in edge.split()}
    edges = shown.page.locator("#drawing .edge.lit")
    assert {*edges.evaluate_all("all => all.map(each => each.dataset.edge)")} == {*path}
    expect(shown.page.locator("#drawing svg")).to_have_attribute(
        "aria-label", re.compile("^Path so far: .*start, gate, .*generate$")
    )


def test_escalating_replaces_an_answer_in_doubt(shown: Shown, fake: FakeOpenAI) -> None:
    fake.answers(by_task(**REPLIES | {"gate": "[No]", "direct": "I don't know"}))
    turn = shown.ask(model="openai:fake", gate="ta-are", escalate=1)
    expect(turn.locator(".step.escalate .verdict")).to_have_text("none → single")
    expect(turn.locator(".answer")).to_have_text("She was born in Lissmere [1].")


def test_decisions_are_shown_as_they_are_made(shown: Shown, fake: FakeOpenAI) -> None:
    go_on, thoughts = threading.Event(), iter(REPLIES["reason"])

    def reason(_: str) -> str:
        go_on.wait(SECONDS)
        return str(next(thoughts))

    fake.answers(by_task(**REPLIES | {"reason": reason}))
    turn = shown.put(QUESTION, model="openai:fake", gate="ta-are", alpha=0.75)
    expect(turn.locator(".query")).to_have_text([QUESTION])
    expect(shown.page.locator("#drawing .busy")).to_have_attribute("data-node", "multihop:reason")
    expect(turn.locator(".answer")).to_be_empty()
    go_on.set()
    expect(turn).to_have_class(re.compile(r"\bfinished\b"))

    heads = turn.locator(".step .head b")
    expect(heads).to_have_text(["Gate", "Route", "Hop 1", "Hop 2", "Stop"])
    expect(turn.locator(".step.gate")).to_contain_text("[Yes]")
    expect(turn.locator(".probabilities .chosen")).to_contain_text("C multi")
    expect(turn.locator(".query")).to_have_text([QUESTION, FACT])
    expect(turn.locator(".thought")).to_have_text(REPLIES["reason"])
    expect(turn.locator(".step.stop .verdict")).to_have_text("answered")
    expect(turn.locator(".answer")).to_have_text("She was born in Lissmere [1].")
    expect(turn.locator(".cost span")).to_have_text(
        ["2 retrievals", "4 model calls", "44 + 12 tokens", re.compile("m?s$"), "openai:fake"]
    )
    expect(turn.locator(".legend li").last).to_contain_text("generate")


def test_a_citation_and_its_mark_open_the_passage(shown: Shown) -> None:
    turn = shown.ask(model="openai:fake", strategy="single")
    citation = turn.locator(".citations").get_by_role("button")
    expect(citation).to_have_text("1Skerrane Lightpassages.jsonl")
    passage = turn.locator(".citations .passage")
    turn.get_by_role("button", name="Source 1").click()
    expect(citation).to_be_focused()
    expect(citation).to_have_attribute("aria-expanded", "true")
    expect(passage.locator("mark")).to_be_visible()
    assert len(passage.locator(".text").inner_text()) > len(passage.locator("mark").inner_text())
    citation.click()
    expect(passage).to_be_hidden()
    turn.locator(".passages").get_by_role("button").nth(1).click()
    expect(turn.locator(".passages .passage .text:visible")).to_have_count(1)


def test_a_conversation_continues_until_a_new_one_starts(shown: Shown, fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct="In 1858", condense="When was Skerrane Light lit?"))
    shown.ask("What is Skerrane Light?", model="openai:fake", strategy="none")
    turn = shown.ask("And when was it lit?")
    expect(turn.locator(".step.condense")).to_contain_text("When was Skerrane Light lit?")
    shown.page.get_by_role("button", name="New conversation").click()
    expect(shown.page.locator(".turn")).to_have_count(0)
    turn = shown.ask("And when was it lit?")
    expect(turn.locator(".step.condense")).to_have_count(0)
    runs = [each for each in shown.watch.requests if each.endswith("/runs/stream")]
    assert runs[0] == runs[1] != runs[2]
    assert len(fake.requests) == 4


def test_a_question_can_be_cancelled_and_the_next_one_asked(shown: Shown, fake: FakeOpenAI) -> None:
    go_on = threading.Event()
    fake.answers(by_task(direct=lambda _: "Late" if go_on.wait(SECONDS) else "Never"))
    turn = shown.put("Who?", model="openai:fake", strategy="none")
    expect(shown.page.locator("#drawing .busy")).to_have_attribute("data-node", "generate")
    shown.page.get_by_role("button", name="Cancel").click()
    expect(turn.locator(".problem")).to_contain_text("Cancelled")
    expect(shown.page.locator("#drawing .busy")).to_have_count(0)
    go_on.set()
    fake.answers(by_task(direct="In time"))
    expect(shown.ask("Who now?").locator(".answer")).to_have_text("In time")


def test_an_error_of_a_proxy_is_shown(shown: Shown) -> None:
    gateway = {"status": 502, "json": {"error": "bad gateway"}}
    with routed(shown.page, "**/threads", lambda route: route.fulfill(**gateway)):
        expect(shown.ask("Who?").locator(".problem")).to_contain_text("bad gateway")
    assert "502" in shown.watch.problems.pop()  # the browser's own message


def test_five_values_of_alpha_are_compared_side_by_side(shown: Shown, fake: FakeOpenAI) -> None:
    go_on = threading.Event()

    def last(text: str) -> Callable[[str], str]:
        return lambda _: text if go_on.wait(SECONDS) else ""

    replies = {"direct": last("Nobody knows"), "answer": last(REPLIES["answer"])}
    thought = {"reason": lambda _: "So the answer is: Lissmere."}
    fake.answers(by_task(**replies, **thought))
    shown.set(model="openai:fake", gate="off", profile="flan-t5-xl")
    shown.page.get_by_role("link", name="Compare α").click()
    expect(shown.page.locator("[name=alpha]")).to_be_disabled()
    shown.page.get_by_label("Question to compare").fill(QUESTION)
    shown.page.keyboard.press("Enter")
    columns = shown.page.locator(".column")
    expect(columns.locator('.busy[data-node="generate"]')).to_have_count(2)
    expect(columns.get_by_text("waiting")).to_have_count(3)  # two at a time
    go_on.set()
    expect(columns.locator("details")).to_have_count(5)
    expect(columns.locator("h2")).to_have_text([f"α = {each}" for each in "0¼½¾1"])
    *none, single, multi, last_multi = columns.locator(".path").all_text_contents()
    assert none == ["start → gate → route → generate"] * 2
    assert single == "start → gate → route → retrieve → generate"
    assert multi == last_multi == "start → gate → route → retrieve → reason → generate"
    assert columns.locator(".edge.lit").count() == 2 * 5 + 6 + 2 * 9
    expect(columns.locator("> div > .probabilities > li")).to_have_count(15)
    lissmere = "She was born in Lissmere [1]."
    expect(columns.locator(".answer")).to_have_text(["Nobody knows"] * 2 + [lissmere] * 3)
    figures = [re.compile(each) for each in ("Retrievals1", "Model calls2", "Tokens28", "Time")]
    expect(columns.last.locator("dl > div")).to_have_text(figures)
    assert not any(each.endswith("/threads") for each in shown.watch.requests)  # nothing is saved
    shown.page.set_viewport_size({"width": 375, "height": 900})
    columns.locator("summary").evaluate_all("all => all.forEach(summary => summary.click())")
    assert shown.overflow() == 0


def test_a_thumb_and_the_right_answer_are_kept_with_the_answer(shown: Shown) -> None:
    turn = shown.ask(model="openai:fake", strategy="single")
    box = turn.get_by_role("group", name="Feedback")
    good, bad = (box.get_by_role("button", name=each) for each in ("Good answer", "Bad answer"))
    good.press("Enter")
    expect(good).to_have_attribute("aria-pressed", "true")
    expect(shown.page.locator("#status")).to_have_text("Feedback: Saved")
    bad.press("Enter")
    expect(bad).to_have_attribute("aria-pressed", "true")
    expect(good).to_have_attribute("aria-pressed", "false")
    field = box.get_by_label("What is the right answer?")
    field.fill("Port Ellery")
    field.press("Enter")
    expect(box.get_by_text("Saved, with the right answer")).to_be_visible()
    with routed(shown.page, "**/feedback", lambda route: route.fulfill(status=409, json=BUSY)):
        bad.click()
        expect(box.get_by_role("alert")).to_contain_text("was not saved: the thread is answering")
    shown.watch.clear()  # the browser reports the 409
    bad.click()
    expect(field).to_be_hidden()


def test_the_keyboard_is_enough(shown: Shown) -> None:
    keyboard = shown.page.keyboard
    focused = shown.page.locator("*:focus")
    shown.set(model="openai:fake", strategy="single")
    shown.page.get_by_label("Question", exact=True).focus()
    keyboard.type(QUESTION)
    keyboard.press("Enter")
    expect(shown.page.locator(".turn")).to_have_class(re.compile(r"\bfinished\b"))
    expect(focused).to_have_id("question")
    shown.page.locator(".mark").focus()
    keyboard.press("Enter")
    expect(shown.page.locator(".citations .passage")).to_be_visible()

    shown.page.locator("[name=alpha]").focus()
    keyboard.press("ArrowRight")
    expect(shown.page.locator(".dial output")).to_have_text("0.51")

    seen = []
    for _ in range(60):
        keyboard.press("Tab")
        seen.append(shown.page.evaluate(FOCUSED))
    assert all(a != b for a, b in pairwise(seen))  # no focus trap
    names = [name for name, _ in seen]
    assert {"Ask", "Compare α", "gate", "index", "new-conversation"} <= {*names}
    assert names.index("alpha", 1) > names.index("question")  # the focus has gone round
    assert all(outlined for _, outlined in seen)


FOCUSED = """(() => {
    const at = document.activeElement;
    if (at === document.body) return ["body", true];
    const ring = getComputedStyle(at.matches(".composer textarea") ? at.parentElement : at);
    return [at.name || at.id || at.textContent.slice(0, 40), ring.outlineStyle !== "none"];
})()"""


def test_a_phone_needs_no_sideways_scrolling(
    shown: Shown, server: Server, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(**REPLIES | {"answer": f"{'Lissmere' * 60} [1]."}))
    shown.open(f"{server.url}/hopgate/", width=375)
    expect(shown.page.locator("#settings [name]").first).to_be_attached()
    assert shown.overflow() == 0
    shown.set(model="openai:fake", strategy="single", max_hops=2)
    assert shown.overflow() == 0
    turn = shown.ask("Why" * 200)
    top = "each => each.getBoundingClientRect().top"
    assert turn.locator(".answer").evaluate(top) < turn.locator(".graph").evaluate(top)
    turn.locator(".citations").get_by_role("button").click()
    assert shown.overflow() == 0
    shown.page.set_viewport_size({"width": 320, "height": 900})
    assert shown.overflow() == 0


ATTACKS = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><a href='javascript:window.pwned=1'>x</a></svg>",
    "[x](javascript:window.pwned=1) ![x](https://mallory.example/x.png)",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>",
    "<details open ontoggle='window.pwned = 1'>x</details>",
    "<style>* { display: none }</style><link rel=stylesheet href=https://mallory.example/>",
    "&lt;script&gt;window.pwned = 1&lt;/script&gt; {{window.pwned = 1}} ${window.pwned = 1}",
    "*a* `b` # c \u202egpj.exe\u202c \u2066d",
]
MADE = (
    "script, img, iframe, a, object, embed, style, link, h3, "
    "form:not(.feedback *), input:not(.feedback *), svg:not(.graph, .thumb *)"
)


def test_untrusted_texts_are_shown_as_text(shown: Shown, fake: FakeOpenAI, tmp_path: Path) -> None:
    passages = [make_passage(f"MALLORY {each}", f"MALLORY {each}", each) for each in ATTACKS]
    build_from_passages(passages, tmp_path / "index")
    said = "\n".join(ATTACKS)
    marks = "".join(f"[{number + 1}]" for number in range(len(ATTACKS)))
    replies = {"reason": "So the answer is: " + " ".join(ATTACKS), "answer": f"{said} {marks}"}
    fake.answers(by_task(**{"condense": said, **replies}))
    settings = {"index": tmp_path / "index", "model": "openai:fake"}
    turn = shown.ask(f"MALLORY? {said}", **settings, strategy="multi", hop_k=len(ATTACKS))
    buttons = turn.locator("button.source")
    buttons.evaluate_all("all => all.forEach(button => button.click())")
    texts = turn.locator(".passages .passage .text").all_text_contents()
    assert sorted(texts) == sorted(f"MALLORY {each}" for each in ATTACKS)
    for place in (".passages .source", ".thought", ".answer", ".card > h2", ".citations .passage"):
        assert "<" in "".join(turn.locator(place).all_inner_texts()), place
    turn = shown.ask(said, model=ATTACKS[0])
    expect(turn.locator(".problem")).to_contain_text(ATTACKS[0])

    assert shown.page.locator("#turns").locator(MADE).count() == 0
    assert shown.page.evaluate("window.pwned") is None


def test_a_refused_setting_is_named_and_marked(shown: Shown) -> None:
    turn = shown.ask(model="nonsense")
    expect(turn.locator(".problem")).to_contain_text("nonsense")
    expect(turn.locator(".problem")).to_contain_text("openai:NAME")
    expect(shown.page.locator("[name=model]")).to_have_attribute("aria-invalid", "true")
    expect(shown.page.locator("#drawing .failed")).to_have_attribute("data-node", "start")
    nowhere = shown.ask(model="openai:fake", index="/nowhere")
    expect(nowhere.locator(".problem")).to_contain_text("the index cannot be used")
    shown.set(index="sample", strategy="none")
    turn.get_by_role("button", name="Ask again").click()
    expect(shown.page.locator(".turn").nth(2).locator(".answer")).to_have_text("Nobody knows")


SAFE = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


@pytest.mark.parametrize("path", ["", "/", "/page.js", "/page.css", "/nothing", "/metrics"])
def test_every_route_has_its_security_headers(server: Server, path: str) -> None:
    for method in ("GET", "HEAD", "POST") if path else ("GET", "HEAD"):
        headers = httpx.request(method, f"{server.url}/hopgate{path}").headers
        assert SAFE.items() <= dict(headers).items()
        policy = dict(each.split(" ", 1) for each in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"


def test_only_the_page_s_files_are_served_and_browsers_revalidate_them(server: Server) -> None:
    url = f"{server.url}/hopgate"
    page = httpx.get(url, follow_redirects=True)
    assert str(page.url) == f"{url}/"
    assert page.headers["cache-control"] == "no-cache"
    again = httpx.get(f"{url}/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304
    for path in ("/..%2fweb.py", "/../web.py", "/__init__.py", "//etc/passwd"):
        assert httpx.get(httpx.URL(f"{url}/", raw_path=f"/hopgate{path}".encode())).is_error


def test_the_files_refer_to_no_other_site() -> None:
    for file in (CONFIG.parent / "server/static").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), file


PAGE = {
    "title": "Staff handbook",
    "examples": ["In what year was Skerrane Light first lit?"],
    "settings": ["top_k"],
    "documents": "https://intranet.example/handbook/",
}


def test_a_project_s_page_shows_the_answer_first_and_only_what_it_offers(
    shown: Shown, server: Server
) -> None:
    schemas = re.compile("/schemas$")

    def dressed(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json={**found, "context_schema": {**found["context_schema"], "page": PAGE}})

    with routed(shown.page, schemas, dressed):
        shown.open(f"{server.url}/hopgate/#compare", width=390)
        expect(shown.page).to_have_title("Staff handbook")
    expect(shown.page.get_by_role("heading", name="Staff handbook")).to_be_visible()
    expect(shown.page.get_by_role("link")).to_have_count(0)
    expect(shown.page.locator("#settings [name]")).to_have_count(1)
    shown.set(top_k=3)
    shown.page.get_by_role("button", name=PAGE["examples"][0]).click()
    turn = shown.page.locator(".turn")
    expect(turn).to_have_class(re.compile("finished"))
    turn.get_by_role("button", name="Source 1").click()
    place = turn.get_by_role("link", name="passages.jsonl")
    expect(place).to_have_attribute("href", f"{PAGE['documents']}passages.jsonl")
    expect(turn.locator(".step").first).to_be_hidden()
    expect(turn.locator(".graph")).to_be_hidden()
    turn.get_by_text("How it was answered").click()
    expect(turn.locator(".graph")).to_be_visible()
    assert shown.overflow() == 0


TOKEN = "a-token-of-nobody-else"


@pytest.fixture(scope="module")
def guarded(window: Shown, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with users, limits and a prefix; its model is down."""
    folder = tmp_path_factory.mktemp("guarded")
    settings = json.loads(CONFIG.read_text(encoding="utf-8"))
    settings["http"] |= {"mount_prefix": "/lab"}
    settings |= {"auth": {"path": "hopgate.server.auth:auth"}, "dependencies": ["."]}
    config = folder / "langgraph.json"
    config.write_text(json.dumps({key: settings[key] for key in KEPT}), encoding="utf-8")
    env = {
        "HOPGATE_TOKENS": json.dumps({digest(TOKEN): "ana"}),
        "HOPGATE_LIMITS": '{"alpha": 0.5}',
        "OPENAI_API_KEY": "sk-server",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1",
    }
    with start(folder, config=config, env=env) as started:
        yield started


KEPT = ("graphs", "http", "auth", "dependencies")


@pytest.fixture
def signed_in(window: Shown, guarded: Server) -> Shown:
    window.open(f"{guarded.url}/lab/hopgate/")
    window.page.get_by_label("Token").fill(TOKEN)
    window.page.keyboard.press("Enter")
    expect(window.page.locator("#settings [name=model]")).to_be_visible()
    return window


def test_only_the_server_gets_the_token(signed_in: Shown) -> None:
    stored = "[localStorage.length, sessionStorage.length, document.cookie].join()"
    assert signed_in.page.evaluate(stored) == "0,0,"
    assert TOKEN not in " ".join(signed_in.watch.requests)
    assert TOKEN not in signed_in.page.content()
    signed_in.page.reload()
    field = signed_in.page.get_by_label("Token", exact=True)
    field.fill("not-this-one")
    signed_in.page.keyboard.press("Enter")
    expect(signed_in.page.locator("#sign-in .message")).to_contain_text("That token was refused")
    field.fill(f"token: {TOKEN}…")  # no header can hold this
    signed_in.page.keyboard.press("Enter")
    expect(field).to_be_visible()
    assert field.evaluate("field => field.validity.patternMismatch")
    field.fill(f" {TOKEN} ")
    signed_in.page.keyboard.press("Enter")
    expect(signed_in.page.locator("[name=model]")).to_be_attached()
    expect(field).to_be_hidden()


def test_a_setting_above_the_operator_s_limits_is_marked(signed_in: Shown) -> None:
    turn = signed_in.ask(alpha=0.9)
    expect(turn.locator(".problem")).to_contain_text("alpha is 0.9: this server allows at most 0.5")
    expect(signed_in.page.locator("[name=alpha]")).to_have_attribute("aria-invalid", "true")


def test_a_server_that_is_down_is_reported(signed_in: Shown, guarded: Server) -> None:
    """Runs last: it stops the server."""
    stop(guarded)
    turn = signed_in.ask()
    expect(turn.locator(".problem")).to_contain_text("The server does not answer")
    expect(turn.get_by_role("button", name="Ask again")).to_be_visible()
    expect(signed_in.page.locator("#server")).to_have_text("no answer")
