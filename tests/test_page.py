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

    def kept(self) -> list[tuple[str, str | None]]:
        """The feedback on the newest thread: thumbs and right answers."""
        server = self.page.url.partition("/hopgate/")[0]
        newest = {"limit": 1, "sort_by": "updated_at", "sort_order": "desc"}
        (thread,) = httpx.post(f"{server}/threads/search", json=newest).json()
        state = httpx.get(f"{server}/threads/{thread['thread_id']}/state").json()
        return [(each["thumbs"], each["answer"]) for each in state["values"]["feedback"].values()]

    def lit(self) -> list[str]:
        """The highlighted nodes of the drawing."""
        shapes = self.page.locator("#drawing [data-node].done")
        names: list[str] = shapes.evaluate_all("all => all.map(each => each.dataset.node)")
        return names

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
        """all => all.map(each => [each.name, {
            label: (each.labels?.[0] ?? each.querySelector("legend")).textContent,
            description: document.getElementById(each.getAttribute("aria-describedby")).textContent,
            options: [...(each.options ?? [])].map(option => option.value),
            value: each.type === "checkbox" ? each.checked : (each.value ?? ""),
        }])"""
    )
    for name, control in drawn:
        field = fields[name]
        assert control["label"]
        assert control["description"] == field["description"]
        assert control["options"] == field.get("enum", [])
        default = field["default"]
        if not isinstance(shown_as := default, bool):
            shown_as = "" if default in (None, {}, []) else str(default)
        shown_as = "0.5" if name == "alpha" else shown_as  # until it is moved, the profile's own
        assert control["value"] == shown_as
    shown.page.locator("[name=gate]").focus()
    expect(shown.page.locator(".help")).to_have_text(fields["gate"]["description"])


def condition(shown: Shown, number: int, field: str, *values: str) -> Locator:
    """Add a row to the filter: a field, and its value or its range."""
    add = shown.page.locator("fieldset[name=where] > button")
    if not add.is_visible():
        shown.page.locator(".more > summary").click()
    add.click()
    row = shown.page.locator("fieldset[name=where] .row").nth(number)
    expect(row.get_by_label("Field")).to_be_focused()
    row.get_by_label("Field").fill(field)
    if len(values) == 2:
        row.get_by_label("Compare").select_option("from … to")
    for box, value in zip(row.locator("input:visible").all()[1:], values, strict=True):
        box.fill(value)
    return row


def asked_where(shown: Shown) -> Any:
    """Ask, and return the filter that was sent."""
    with shown.page.expect_request(re.compile(r"/runs/stream$")) as sent:
        shown.ask()
    return sent.value.post_data_json["context"].get("where")


def test_a_filter_is_a_form(shown: Shown) -> None:
    shown.set(strategy="single")
    assert shown.page.locator("fieldset[name=where] .row").count() == 0
    condition(shown, 0, "title", "Skerrane Light")
    condition(shown, 1, "title", "Farrick Head Lighthouse")
    assert asked_where(shown) == {"title": ["Skerrane Light", "Farrick Head Lighthouse"]}
    expect(shown.page.locator(".turn").last.locator(".source, .passage").first).to_be_visible()
    condition(shown, 2, "date", "2024-01-01", "")
    condition(shown, 3, "size", "-1.5", "100")
    row = condition(shown, 4, "tags", "")
    row.get_by_label("Field").fill("")
    row = shown.page.locator("fieldset[name=where] .row").nth(1)
    row.get_by_role("button", name="Remove the condition").click()
    assert asked_where(shown) == {
        "title": "Skerrane Light",
        "date": {"from": "2024-01-01"},
        "size": {"from": -1.5, "to": 100},
    }
    assert shown.overflow() <= 0
    shown.page.get_by_role("button", name="Back to defaults").click()
    assert shown.page.locator("fieldset[name=where] .row").count() == 0
    assert asked_where(shown) is None


def test_a_filter_that_lacks_a_value_is_refused_and_marked(shown: Shown) -> None:
    shown.set(strategy="single")
    condition(shown, 0, "date", "yesterday", "")
    turn = shown.put(QUESTION)
    expect(turn).to_contain_text("where.date is {'from': 'yesterday'}: use")
    expect(shown.page.locator("fieldset[name=where]")).to_have_attribute("aria-invalid", "true")
    shown.watch.problems.clear()


RECTANGLES = """all => all.map(each => each.getBBox())
    .map(({ x, y, width, height }) => [x, y, x + width, y + height])"""


def overlap(a: list[float], b: list[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def assert_drawn(drawing: Locator, graph: Any) -> None:
    """Check that a drawing shows the nodes and edges of a graph, apart and inside the picture."""
    nodes, edges = drawing.locator("[data-node]"), drawing.locator("[data-edge]")
    expect(nodes).to_have_count(len(graph["nodes"]))
    expect(edges).to_have_count(len(graph["edges"]))
    ids = nodes.evaluate_all("all => all.map(each => each.dataset.node)")
    assert {*ids} == {node["id"] for node in graph["nodes"]}
    ends = edges.evaluate_all("all => all.map(each => each.dataset.edge)")
    assert {*ends} == {f"{edge['source']} {edge['target']}" for edge in graph["edges"]}
    assert all(edges.locator("path").evaluate_all("all => all.map(e => e.getTotalLength() > 5)"))
    places = nodes.locator("rect, circle").evaluate_all(RECTANGLES)
    assert not any(overlap(a, b) for a, b in combinations(places, 2))
    _, _, width, height = map(float, (drawing.get_attribute("viewBox") or "").split())
    lines = edges.locator("path").evaluate_all(RECTANGLES)
    for left, top, right, bottom in [*places, *lines]:
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
    boxes = drawing.locator(".box")
    names = boxes.evaluate_all("all => all.map(each => each.dataset.box)")
    for name, box in zip(names, boxes.locator("rect").evaluate_all(RECTANGLES), strict=True):
        assert {node for node, place in zip(ids, places, strict=True) if overlap(box, place)} == {
            node for node in ids if node.startswith(f"{name}:")
        }


def test_every_node_and_edge_of_the_graph_is_drawn(shown: Shown, server: Server) -> None:
    graph = httpx.get(f"{server.url}/assistants/hopgate/graph?xray=true").json()
    expect(shown.page.locator("#drawing .box")).to_have_count(1)
    assert_drawn(shown.page.locator("#drawing svg"), graph)


def fake_graph(*paths: str) -> dict[str, Any]:
    """A FAKE description of a graph, as the server would send it."""
    edges = [pair for path in paths for pair in pairwise(path.split())]
    names = dict.fromkeys(name for edge in edges for name in edge)
    return {
        "nodes": [{"id": name} for name in names],
        "edges": [{"source": source, "target": target} for source, target in edges],
    }


LOOPS = fake_graph(
    "__start__ a out:__start__ out:in:__start__ out:in:x out:in:__end__ out:y out:__end__ __end__",
    "out:y out:in:__start__",
    "a a",
)
DRAW = """async (graph) => {
    const { Drawing } = await import(new URL("graph.js", location.href));
    document.querySelector("#drawing").replaceChildren(new Drawing(graph).element);
}"""


def test_a_loop_in_a_loop_is_drawn(shown: Shown) -> None:
    # The page's own drawing, if it came later, would replace this one.
    expect(shown.page.locator("#drawing [data-node=generate]")).to_be_visible()
    shown.page.evaluate(DRAW, LOOPS)
    assert_drawn(shown.page.locator("#drawing svg"), LOOPS)


# Up to the gate, every first question takes the same edges.
DIRECT = ["__start__ start", "start gate"]
ASKED = [*DIRECT, "gate route"]
END = ["generate __end__"]
INTO_LOOP = [*ASKED, "route multihop:__start__"]
OUT_OF_LOOP = ["multihop:__end__ generate", *END]


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"gate": "never"}, [*DIRECT, "gate generate", *END]),
        ({"strategy": "single"}, [*ASKED, "route retrieve", "retrieve generate", *END]),
        (
            {"strategy": "multi"},
            [
                *INTO_LOOP,
                "multihop:__start__ multihop:retrieve",
                "multihop:retrieve multihop:reason",
                "multihop:reason multihop:retrieve",
                "multihop:reason multihop:__end__",
                *OUT_OF_LOOP,
            ],
        ),
        (
            {"strategy": "multi", "multihop": "decompose"},
            [
                *INTO_LOOP,
                "multihop:__start__ multihop:decompose",
                "multihop:decompose multihop:retrieve",
                "multihop:retrieve multihop:sub_answer",
                "multihop:sub_answer multihop:retrieve",
                "multihop:sub_answer multihop:__end__",
                *OUT_OF_LOOP,
            ],
        ),
    ],
    ids=["gate says no", "single", "multi", "decompose"],
)
def test_the_path_of_a_run_is_highlighted(
    shown: Shown, settings: dict[str, str], path: list[str]
) -> None:
    shown.ask(model="openai:fake", **settings)
    assert set(shown.lit()) == {name for edge in path for name in edge.split()}
    edges = shown.page.locator("#drawing .edge.lit")
    assert set(edges.evaluate_all("all => all.map(each => each.dataset.edge)")) == set(path)
    expect(shown.page.locator("#drawing svg")).to_have_attribute(
        "aria-label", re.compile("^Path so far: .*start, gate, .*generate$")
    )


def test_escalating_replaces_an_answer_in_doubt(shown: Shown, fake: FakeOpenAI) -> None:
    fake.answers(by_task(**REPLIES | {"gate": "[No]", "direct": "I don't know"}))
    turn = shown.ask(model="openai:fake", gate="ta-are", escalate=1)
    expect(turn.locator(".step.escalate .verdict")).to_have_text("none → single")
    expect(turn.locator(".answer")).to_have_text("She was born in Lissmere [1].")
    lit = shown.page.locator("#drawing .edge.lit")
    lit_names = set(lit.evaluate_all("all => all.map(each => each.dataset.edge)"))
    assert {"generate escalate", "escalate retrieve", "retrieve generate"} < lit_names


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
    expect(turn.locator(".probabilities li")).to_have_count(3)
    figures = turn.locator(".probabilities .figure").all_text_contents()
    assert sum(float(figure.rstrip("%")) for figure in figures) == pytest.approx(100, abs=0.2)
    expect(turn.locator(".probabilities .chosen")).to_contain_text("C multi")
    expect(turn.locator(".query")).to_have_text([QUESTION, FACT])
    expect(turn.locator(".thought")).to_have_text(REPLIES["reason"])
    expect(turn.locator(".passages").first.get_by_role("button").first).to_have_text(
        "Skerrane Light"
    )
    expect(turn.locator(".step.stop .verdict")).to_have_text("answered")
    expect(turn.locator(".answer")).to_have_text("She was born in Lissmere [1].")
    expect(turn.locator(".cost span")).to_have_text(
        ["2 retrievals", "4 model calls", "44 + 12 tokens", re.compile("m?s$"), "openai:fake"]
    )
    nodes = [text.split()[0] for text in turn.locator(".legend li").all_text_contents()]
    assert nodes[nodes.index("gate") :] == ["gate", "route", "retrieve", "reason", "generate"]


def test_a_citation_opens_its_passage(shown: Shown) -> None:
    turn = shown.ask(model="openai:fake", strategy="single")
    citation = turn.locator(".citations").get_by_role("button")
    expect(citation).to_have_count(1)
    expect(citation.locator(".number")).to_have_text("1")
    expect(citation.locator(".place")).to_have_text("passages.jsonl")
    expect(citation).to_have_attribute("aria-expanded", "false")
    citation.click()
    expect(citation).to_have_attribute("aria-expanded", "true")
    passage = turn.locator(".citations .passage")
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


def test_a_slow_request_can_be_cancelled_and_an_error_of_a_proxy_is_shown(shown: Shown) -> None:
    held: list[Route] = []
    with routed(shown.page, "**/threads", lambda route: held.append(route)):
        turn = shown.put("Who?", strategy="none")
        shown.page.get_by_role("button", name="Cancel").click()
        expect(turn.locator(".problem")).to_contain_text("Cancelled")
        assert len(held) == 1
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
    assert columns.locator(".edge.lit").count() == 5 * len(DIRECT) + 2 * 3 + 4 + 2 * 7
    expect(columns.locator("> div > .probabilities > li")).to_have_count(15)
    lissmere = "She was born in Lissmere [1]."
    expect(columns.locator(".answer")).to_have_text(["Nobody knows"] * 2 + [lissmere] * 3)
    names = ["Retrievals", "Model calls", "Tokens", "Time"]
    expect(columns.locator("dt")).to_have_text(names * 5)
    figures = columns.locator("dd").all_text_contents()
    assert [figures[at : at + 3] for at in range(0, 20, 4)] == [
        *[["0", "1", "14"]] * 2,
        ["1", "1", "14"],
        *[["1", "2", "28"]] * 2,
    ]
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
    assert shown.kept() == [("down", "Port Ellery")]
    with routed(shown.page, "**/feedback", lambda route: route.fulfill(status=409, json=BUSY)):
        bad.click()
        expect(box.get_by_role("alert")).to_contain_text("was not saved: the thread is answering")
    shown.watch.clear()  # the browser reports the 409
    bad.click()
    expect(field).to_be_hidden()
    assert shown.kept() == []


def test_the_keyboard_is_enough(shown: Shown) -> None:
    keyboard = shown.page.keyboard
    focused = shown.page.locator("*:focus")
    shown.set(model="openai:fake", strategy="single")
    shown.page.get_by_label("Question", exact=True).focus()
    keyboard.type(QUESTION)
    keyboard.press("Enter")
    expect(shown.page.locator(".turn")).to_have_class(re.compile(r"\bfinished\b"))
    expect(focused).to_have_id("question")
    keyboard.press("Shift+Tab")
    expect(focused).to_have_attribute("aria-expanded", "false")
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
    assert {"Ask", "Compare α", "alpha", "gate", "index", "question", "new-conversation"} <= {
        *names
    }
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
    expect(turn.locator(".graph")).to_be_visible()  # within the turn, where the reader is
    turn.locator(".citations").get_by_role("button").click()
    assert shown.overflow() == 0
    shown.page.set_viewport_size({"width": 320, "height": 900})
    assert shown.overflow() == 0
    for words in (".brand", "nav a"):  # each on one line
        heights = shown.page.locator(words).evaluate_all(
            "all => all.map(each => each.offsetHeight)"
        )
        assert max(heights) < 45


ATTACKS = [
    "<script>window.pwned = 1</script>",
    "</p></textarea></script><script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><a href='javascript:window.pwned=1'>x</a></svg>",
    '<a href="javascript:window.pwned=1">x</a>',
    "[x](javascript:window.pwned=1) ![x](https://mallory.example/x.png)",
    "https://mallory.example/ javascript:window.pwned=1",
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
    buttons = turn.locator("button:not(.thumb)")  # a thumb would write while the next run starts
    buttons.evaluate_all("all => all.forEach(button => button.click())")
    texts = turn.locator(".passages .passage .text").all_text_contents()
    assert sorted(texts) == sorted(f"MALLORY {each}" for each in ATTACKS)
    for place in (".passages .source", ".thought", ".answer", ".card > h2", ".citations .passage"):
        assert "<" in "".join(turn.locator(place).all_inner_texts()), place
    turn = shown.ask(said, model=ATTACKS[2])
    expect(turn.locator(".problem")).to_contain_text(ATTACKS[2])

    assert shown.page.locator("#turns").locator(MADE).count() == 0
    assert shown.page.evaluate("window.pwned") is None


def test_a_refused_setting_is_named_and_marked(shown: Shown) -> None:
    turn = shown.ask(model="nonsense")
    expect(turn.locator(".problem")).to_contain_text("nonsense")
    expect(turn.locator(".problem")).to_contain_text("openai:NAME")
    expect(shown.page.locator("[name=model]")).to_have_attribute("aria-invalid", "true")
    expect(shown.page.locator("#drawing .failed")).to_have_attribute("data-node", "start")
    shown.ask(model="openai:fake", index="/nowhere")
    expect(shown.page.locator("#settings [aria-invalid]")).to_have_count(1)
    expect(shown.page.locator("[name=index]")).to_have_attribute("aria-invalid", "true")
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
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    again = httpx.get(f"{url}/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304
    assert "javascript" in httpx.get(f"{url}/page.js").headers["content-type"]
    for path in ("/..%2fweb.py", "/%2e%2e/web.py", "/../web.py", "/__init__.py", "//etc/passwd"):
        assert httpx.get(httpx.URL(f"{url}/", raw_path=f"/hopgate{path}".encode())).is_error


def test_the_files_refer_to_no_other_site(server: Server) -> None:
    files = sorted((CONFIG.parent / "server/static").iterdir())
    assert len(files) > 5
    for file in files:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), file
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    html = files[[file.name for file in files].index("index.html")].read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", html)


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


def test_feedback_needs_a_token_and_reaches_threads_behind_a_prefix(guarded: Server) -> None:
    body = {"thread_id": "0192d2a4-0000-7000-8000-000000000000", "thumbs": "up"}
    url = f"{guarded.url}/lab/hopgate/feedback"
    refused = httpx.post(url, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    unknown = httpx.post(url, json=body, headers=headers)
    assert (unknown.status_code, "no such thread" in unknown.text) == (404, True)
    made = httpx.post(f"{guarded.url}/lab/threads", json={}, headers=headers).json()["thread_id"]
    early = httpx.post(url, json={**body, "thread_id": made}, headers=headers)
    assert (early.status_code, "no answer yet" in early.text) == (404, True)


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
