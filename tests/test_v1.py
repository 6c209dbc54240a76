"""`/v1`: a real `hopgate serve` and a real `langgraph dev`, called by OpenAI's own clients."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from commands import Ran, one_line
from doubles import by_task
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI, Reply
from hypothesis import given
from hypothesis import strategies as st
from langgraph_dev import free_port, running
from openai import OpenAI
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hopgate import build_graph
from hopgate.models.chat import _UNOPENED, without_thoughts
from hopgate.nodes.answers.reading import read_full_answer, settled
from hopgate.retrievers.base import Hit
from hopgate.server import project, tokens
from hopgate.server.access.bodies import BODY_BYTES
from hopgate.server.openai import v1
from hopgate.server.openai.completions import ChatRequest, annotations

QUESTION = "In what year was Skerrane Light first lit?"
SINGLE = ("--strategy", "single", "--model", "openai:fake")
TOKEN, BENS = "ada-1c5f0e2b9a774d31", "ben-77d0c1b64e9f2a35"
KEPT = "kept.sqlite"
HERS = "Whose is the lamp of the ferry?"


class Serving(NamedTuple):
    """A running `hopgate serve`: its address, its log and its process."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)


@contextmanager
def serving(
    folder: Path, fake: FakeOpenAI, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """Run `hopgate serve` in a folder, on a free port, until the context ends."""
    port = free_port()
    command = [sys.executable, "-m", "hopgate", "serve", "--port", str(port), *options]
    model = {"OPENAI_BASE_URL": fake.base_url, "OPENAI_API_KEY": "sk-serving"}
    environment = model | dict(env or {})
    with running(command, folder, port, env=environment, ready="/hopgate/metrics") as found:
        yield Serving(*found)


@pytest.fixture(scope="module")
def served(_fake_server: FakeOpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("serve"), _fake_server, *SINGLE) as found:
        yield found


@pytest.fixture(scope="module")
def public(_fake_server: FakeOpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with the users ada and ben, limits that name them, and a file of conversations."""
    limits = {
        "alpha": 0.75,
        "message_chars": 60,
        "body_bytes": 4_000,
        "where": {"source": "users/{user}/*"},
    }
    env = {
        "HOPGATE_TOKENS": json.dumps({tokens.digest(TOKEN): "ada", tokens.digest(BENS): "ben"}),
        "HOPGATE_LIMITS": json.dumps(limits),
    }
    folder = tmp_path_factory.mktemp("public")
    for name in ("ada", "ben"):
        file = folder / "documents" / "users" / name / "note.md"
        file.parent.mkdir(parents=True)
        file.write_text(f"# Note\n\nThe lamp of the ferry belongs to {name}.\n")
    subprocess.run(
        [sys.executable, "-m", "hopgate", "index", "build", "documents", "--out", "index"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    options = (*SINGLE, "--index", "index", "--keep", KEPT)
    with serving(folder, _fake_server, *options, env=env) as found:
        yield found


def in_process(**settings: Any) -> OpenAI:
    """OpenAI's client of the routes, without a server."""
    graph = build_graph()
    app = Starlette(routes=[v1.OpenAIRoutes(lambda: graph, settings).mount()])
    http: Any = TestClient(app)
    return OpenAI(base_url="http://x/v1", api_key="none", max_retries=0, http_client=http)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def streamed(*pieces: str) -> Reply:
    """A reply of the fake endpoint that arrives in these pieces."""
    parts = [{"index": 0, "delta": {"content": each}, "finish_reason": None} for each in pieces]
    parts.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    documents = [{"id": "x", "choices": [each]} for each in parts]
    lines = [*documents, {"id": "x", "choices": [], "usage": usage}]
    return Reply(body="".join(f"data: {json.dumps(each)}\n\n" for each in lines).encode())


# Models


def test_models_are_the_graph_and_the_presets(served: Serving) -> None:
    listed = served.client().models.list().data
    assert [each.id for each in listed] == ["hopgate", "cheapest", "balanced", "most-reliable"]
    found = served.client().models.retrieve("hopgate-0.4")
    assert (found.id, found.object, found.owned_by) == ("hopgate-0.4", "model", "hopgate")


@pytest.mark.parametrize(
    ("model", "alpha"),
    [("hopgate", 0.7), ("hopgate-0.25", 0.25), ("hopgate-1", 1.0), ("cheapest", 0.0),
     ("most-reliable", 1.0)],
)  # fmt: skip
def test_the_model_s_name_sets_alpha(
    served: Serving, fake: FakeOpenAI, model: str, alpha: float
) -> None:
    fake.answers(by_task(answer="In 1858 [1]."))
    done = served.client().chat.completions.create(model=model, messages=[user(QUESTION)])
    assert done.model == model
    assert extra(done)["decision"]["alpha"] == alpha


@pytest.mark.parametrize("model", ["gpt-4o", "hopgate-", "hopgate-nan", "hopgate-1e-1", ""])
def test_an_unknown_model_is_named_with_those_there_are(served: Serving, model: str) -> None:
    with pytest.raises(openai.NotFoundError, match=r"there is no model .*hopgate-0\.7") as caught:
        served.client().chat.completions.create(model=model, messages=[user(QUESTION)])
    assert caught.value.code == "model_not_found"


# Answers


def extra(document: Any) -> dict[str, Any]:
    """The part of a completion that OpenAI's API does not have."""
    found: dict[str, Any] = document.model_extra["hopgate"]
    return found


def test_an_answer_has_its_sources_as_annotations_and_in_a_plain_field(
    served: Serving, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(answer="It was lit in 1858 [1]."))
    done = served.client().chat.completions.create(model="hopgate", messages=[user(QUESTION)])
    (choice,) = done.choices
    assert (choice.finish_reason, choice.message.role) == ("stop", "assistant")
    assert choice.message.content == "It was lit in 1858 [1]."
    (cited,) = extra(done)["citations"]
    assert (cited["title"], cited["number"]) == ("Skerrane Light", 1)
    assert choice.message.annotations
    (annotation,) = choice.message.annotations
    assert annotation.type == "url_citation"
    noted = annotation.url_citation
    assert choice.message.content[noted.start_index : noted.end_index] == "[1]"
    assert (noted.title, noted.url) == ("Skerrane Light", f"passages.jsonl#{cited['id']}")
    assert noted.content == cited["quote"]  # type: ignore[attr-defined]
    assert done.usage
    assert done.usage.prompt_tokens == PROMPT_TOKENS
    assert done.usage.total_tokens == PROMPT_TOKENS + COMPLETION_TOKENS
    assert extra(done)["usage"]["retrieval_steps"] == 1


def test_a_conversation_brings_its_history_and_its_system_message(
    served: Serving, fake: FakeOpenAI
) -> None:
    heard: list[str] = []
    standalone = "Who designed Skerrane Light?"

    def condense(text: str) -> str:
        heard.append(text)
        return standalone

    fake.answers(by_task(condense=condense, answer="Ilsabet Corrane [1]"))
    messages: Any = [
        {"role": "developer", "content": "Answer like a pirate."},
        user(QUESTION),
        {"role": "assistant", "content": "In 1858 [1]."},
        user("And who designed it?"),
    ]
    done = served.client().chat.completions.create(model="hopgate", messages=messages)
    assert f"Question: {QUESTION}\nAnswer: In 1858." in heard[0]
    assert extra(done)["hops"][0]["query"] == standalone
    rewriting, answering = fake.prompts
    assert "pirate" not in rewriting
    assert "Answer like a pirate." in answering


def test_fields_without_effect_are_named(served: Serving, fake: FakeOpenAI) -> None:
    fake.answers(by_task(answer="In 1858 [1]"))
    done = served.client().chat.completions.create(
        model="hopgate", messages=[user(QUESTION)], presence_penalty=0.3, user="ada"
    )
    warnings = extra(done)["decision"]["warnings"]
    assert "presence_penalty, user: no effect in hopgate" in warnings


def test_sampling_reaches_the_request_that_writes_the_answer_and_no_other(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", answer="In 1858 [1]"))
    wanted = {"temperature": 0.3, "top_p": 0.8, "seed": 7, "stop": ["END"]}
    in_process(model="openai:fake", gate="ta-are").chat.completions.create(
        model="hopgate", messages=[user(QUESTION)], max_tokens=900, reasoning_effort="low", **wanted
    )
    gate, answer = fake.requests
    assert gate["temperature"] == 0 and wanted.keys() & gate.keys() == {"temperature"}
    assert {name: answer[name] for name in wanted} == wanted
    assert (answer["max_completion_tokens"], answer["reasoning_effort"]) == (900, "low")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_was_cut_says_so(served: Serving, fake: FakeOpenAI, stream: bool) -> None:
    fake.answers(by_task(answer=Reply("It was lit in", finish="length")))
    body = {"model": "hopgate", "messages": [user(QUESTION)], "stream": stream}
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=60).text
    last = json.loads(reply.split("\n\n")[-3].removeprefix("data: ") if stream else reply)
    assert last["choices"][0]["finish_reason"] == "length"
    assert "the answer was cut at its maximum length" in str(last["hopgate"]["decision"])


# Streams


def test_a_stream_is_the_answer_piece_by_piece(served: Serving, fake: FakeOpenAI) -> None:
    fake.answers(by_task(answer=streamed("It was", " lit in", " 1858", " [", "3].")))
    chunks = list(
        served.client().chat.completions.create(
            model="hopgate",
            messages=[user(QUESTION)],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    deltas = [each.choices[0].delta for each in chunks if each.choices]
    pieces = [each.content for each in deltas if each.content]
    assert "".join(pieces) == "It was lit in 1858 [1]."
    assert pieces[:3] == ["It was", " lit in", " 1858"]
    assert deltas[0].role == "assistant"
    assert len({each.id for each in chunks}) == 1
    *_, closing, counted = chunks
    assert closing.choices[0].finish_reason == "stop"
    assert extra(closing)["citations"][0]["number"] == 1
    (noted,) = next(each.model_extra for each in deltas if each.model_extra)["annotations"]
    assert noted["url_citation"]["title"] == extra(closing)["citations"][0]["title"]
    assert counted.usage and (counted.usage.prompt_tokens, counted.usage.total_tokens) == (5, 7)
    assert not counted.choices
    assert all(each.usage is None for each in chunks[:-1])


def test_an_answer_that_may_be_withdrawn_is_sent_once_it_stands(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="I don't know", answer=streamed("In", " 1858 [1]")))
    client = in_process(model="openai:fake", gate="ta-are", escalate=3)
    chunks = client.chat.completions.create(model="hopgate", messages=[user(QUESTION)], stream=True)
    texts = [each.choices[0].delta.content for each in chunks]
    assert [each for each in texts if each] == ["In 1858 [1]"]


EVIDENCE = [Hit(id=f"{n}", title=f"Light {n}", text=f"Lit in 185{n}.", score=1.0) for n in range(3)]
PIECES = st.sampled_from(
    ["Answer: ", "answer", "I ", "do", "don't", "don’t know", "In 1851", " [1]", "[2, 9]", " [7]",
     "[", "]", "<think>", "no</think>", "\n", " ", ".", "a[1]", "<b>", "However, ", "I", "x", "`",
     "```"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=8), st.booleans())
def test_streamed_text_is_never_taken_back(pieces: list[str], grounded: bool) -> None:
    reply = "".join(pieces)
    seen = without_thoughts(reply).strip()
    thoughts = _UNOPENED.match(reply) is not None
    final = read_full_answer(seen, EVIDENCE if grounded else [], "When was it lit?").text
    for end in range(len(reply) + 1):
        part = settled(reply[:end], 3 * grounded, thoughts=thoughts)
        assert final.startswith(part), (reply[:end], part, final)


def test_a_full_answer_streams_on_past_its_marks() -> None:
    reply = "It was lit in 1851 [1]. Then [9] it `a[7]` grew [2, 3]. [x] is not a mark [12"
    seen = [settled(reply[:end], 3) for end in range(len(reply) + 1)]
    assert seen[21] == "It was lit in 1851" and seen[22] == "It was lit in 1851 [1]"
    assert seen[-1] == "It was lit in 1851 [1]. Then it `a[7]` grew [2, 3]. [x] is not a mark"


def test_a_client_that_hangs_up_ends_the_run(served: Serving, fake: FakeOpenAI) -> None:
    fake.answers(by_task(answer=Reply("late", delay=20)))
    before = served.log.read_text().count("outcome=cancelled")
    with pytest.raises(openai.APITimeoutError):
        served.client().chat.completions.create(
            model="hopgate", messages=[user(QUESTION)], timeout=2
        )
    with (
        pytest.raises((openai.APITimeoutError, httpx.ReadTimeout)),  # the latter before openai 3
        served.client().chat.completions.create(
            model="hopgate", messages=[user(QUESTION)], timeout=2, stream=True
        ) as stream,
    ):
        list(stream)
    end = time.monotonic() + 10
    while served.log.read_text().count("outcome=cancelled") < before + 2:
        assert time.monotonic() < end, served.log.read_text()[-2000:]
        time.sleep(0.05)


# Errors


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": None}, "model is None: Input should be a valid string"),
        ({"messages": []}, "messages is []: List should have at least 1 item"),
        ({"messages": [{"role": "bard"}]}, "messages cannot be read"),
        ({"messages": [user(" ")]}, "question is empty"),
        ({"messages": [{"role": "assistant", "content": "Hello"}]}, "there is no new question"),
        ({"model": "hopgate-1.5"}, "alpha is 1.5: Input should be less than or equal to 1"),
        ({"n": 2}, "n is 2: Input should be 1"),
        (
            {"tool_choice": "required"},
            "tool_choice is 'required': Input should be",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format.type is 'json_object'"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_in_openai_s_form(
    served: Serving, fake: FakeOpenAI, body: dict[str, Any], message: str
) -> None:
    asked = {"model": "hopgate", "messages": [user("x")], **body}
    reply = httpx.post(f"{served.url}/v1/chat/completions", json=asked, timeout=60)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert message in error["message"] and "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not fake.requests


def test_other_types_of_content_are_refused(served: Serving) -> None:
    """A page of another site can send these without asking."""
    body = json.dumps({"model": "hopgate", "messages": [user(QUESTION)]})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        reply = httpx.post(
            f"{served.url}/v1/chat/completions", content=body, headers={"Content-Type": kind}
        )
        assert (reply.status_code, reply.json()["error"]["type"]) == (415, "invalid_request_error")
    foreign = {"Origin": "https://evil.example"}
    assert httpx.get(f"{served.url}/v1/models", headers=foreign).status_code == 403


def test_a_model_that_fails_is_an_error_that_clients_do_not_retry(
    served: Serving, fake: FakeOpenAI
) -> None:
    fake.answers(lambda _: Reply(status=401, error="wrong key"))
    client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=2)
    refused = "the model's endpoint refused the server's key; the server's log has the reason"
    with pytest.raises(openai.InternalServerError, match=refused) as caught:
        client.chat.completions.create(model="hopgate", messages=[user(QUESTION)])
    assert len(fake.requests) == 1
    assert caught.value.response.json()["hopgate"]["usage"]["llm_calls"] == 1


def test_an_error_after_the_stream_has_begun_ends_it(served: Serving, fake: FakeOpenAI) -> None:
    fake.answers(by_task(answer=Reply(status=400, error="out of memory")))
    chunks = served.client().chat.completions.create(
        model="hopgate", messages=[user(QUESTION)], stream=True
    )
    with pytest.raises(openai.APIError, match="the model's endpoint refused the request"):
        list(chunks)


# Users and limits


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/hopgate/mcp"])
def test_a_body_has_a_limit_even_if_the_operator_sets_none(served: Serving, path: str) -> None:
    content = iter([b" " * 1_000_000] * (BODY_BYTES // 1_000_000 + 1))
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    reply = httpx.post(f"{served.url}{path}", content=content, headers=headers, timeout=30)
    assert reply.status_code == 413, reply.text


def test_a_server_with_users_asks_for_a_token(public: Serving, fake: FakeOpenAI) -> None:
    for key in ("wrong", tokens.digest(TOKEN)):
        with pytest.raises(openai.AuthenticationError, match="missing or wrong token") as caught:
            public.client(key).chat.completions.create(model="hopgate", messages=[user(QUESTION)])
        assert caught.value.code == "invalid_api_key"
    assert httpx.get(f"{public.url}/v1/models").status_code == 401
    assert not fake.requests
    assert [each.id for each in public.client(TOKEN).models.list().data] == [
        "hopgate", "cheapest", "balanced",
    ]  # fmt: skip


def test_a_user_finds_only_their_own_documents(public: Serving, fake: FakeOpenAI) -> None:
    fake.answers(by_task(answer="It belongs to ada [1]."))
    done = public.client(TOKEN).chat.completions.create(
        model="hopgate", messages=[user("Whose is the lamp of the ferry?")]
    )
    assert [each["source"] for each in extra(done)["citations"]] == ["users/ada/note.md"]
    assert "ben" not in fake.prompts[0]


def test_mcp_has_the_same_users_documents_and_limits(public: Serving, fake: FakeOpenAI) -> None:
    def call(status: int, tool: str, given: str = f"Bearer {TOKEN}", **arguments: Any) -> Any:
        headers = {"Accept": "application/json, text/event-stream", "Authorization": given}
        params = {"name": tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        reply = httpx.post(f"{public.url}/hopgate/mcp", json=body, headers=headers, timeout=60)
        assert reply.status_code == status, reply.text
        return reply.json().get("result") or reply.headers["www-authenticate"]

    for wrong in ("", "Bearer wrong", TOKEN, f"Basic {TOKEN}"):
        assert call(401, "search", wrong, query=HERS) == "Bearer"
    found = call(200, "search", query=HERS)["structuredContent"]["passages"]
    assert [each["source"] for each in found] == ["users/ada/note.md"]
    fake.answers(by_task(answer="It belongs to ada [1]."))
    sources = call(200, "ask", question=HERS)["structuredContent"]["sources"]
    assert [each["source"] for each in sources] == ["users/ada/note.md"]
    refused = call(200, "ask", question=HERS, alpha=0.8)
    assert refused["isError"] and "allows at most 0.75" in refused["content"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_kept_completion_takes_feedback_from_its_user_alone_and_can_be_harvested(
    public: Serving, fake: FakeOpenAI, tmp_path: Path, run: Callable[..., Ran], stream: bool
) -> None:
    fake.answers(by_task(answer="It belongs to ada [1].", condense=HERS))
    earlier = [user("Whose is the ferry's lamp?"), {"role": "assistant", "content": "Ada's."}]
    done = public.client(TOKEN).chat.completions.create(
        model="hopgate", messages=[*earlier, user(HERS)], stream=stream
    )
    name = list(done)[-1].id if stream else done.id  # type: ignore[union-attr]

    def give(status: int, key: str = TOKEN, **body: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}"}
        reply = httpx.post(f"{public.url}/v1/feedback", json={"id": name, **body}, headers=headers)
        assert reply.status_code == status, reply.text
        return reply.json()

    give(200, thumbs="up")
    said = give(200, thumbs="down", answer="Ada Martens")
    assert (said["id"], said["feedback"]["answer"]) == (name, "Ada Martens")
    assert "no completion" in give(404, BENS, thumbs="up")["error"]["message"]
    assert "no completion 'x' of yours" in give(404, id="x")["error"]["message"]
    assert (
        "thumbs is 'sideways': Input should be" in give(400, thumbs="sideways")["error"]["message"]
    )
    assert give(401, "wrong")["error"]["code"] == "invalid_api_key"
    file, out = public.log.with_name(KEPT), tmp_path / "questions.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("harvest", file, "--out", out).code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    (row,) = (each for each in rows if each["question"] == HERS)
    assert row["signals"] == ["corrected", "thumbs-down"]
    assert row["answers"] == ["Ada Martens"]


def test_a_server_that_keeps_nothing_takes_no_feedback(served: Serving) -> None:
    reply = httpx.post(f"{served.url}/v1/feedback", json={"id": "x", "thumbs": "up"})
    assert reply.status_code == 404
    assert "start it with hopgate serve --keep FILE" in reply.json()["error"]["message"]


def test_a_file_that_cannot_be_kept_in_stops_the_start(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be read as its first page")
    (tmp_path / "folder").mkdir()
    for name in ("text", "folder"):
        (tmp_path / name).chmod(0o755)
    for name, cause in (
        ("missing/x", "unable to open"), ("text", "not a database"), ("folder", "unable to open"),
    ):  # fmt: skip
        one_line(run("serve", "--keep", tmp_path / name), 1, "--keep", cause, "name another file")
    for name in ("text", "folder"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("stream", [False, True])
def test_limits_hold_for_a_completion(public: Serving, fake: FakeOpenAI, stream: bool) -> None:
    ask = public.client(TOKEN).chat.completions.create
    with pytest.raises(openai.BadRequestError, match=r"alpha is 1\.0: this server allows at most"):
        ask(model="most-reliable", messages=[user(QUESTION)], stream=stream)
    with pytest.raises(openai.BadRequestError, match="message has 61 characters"):
        ask(model="hopgate", messages=[user("x" * 61)], stream=stream)
    with pytest.raises(openai.APIStatusError, match="allows at most 4000 bytes") as caught:
        ask(model="hopgate", messages=[user("x" * 5_000)], stream=stream)
    assert caught.value.status_code == 413
    assert not fake.requests


# The command


def test_a_project_s_graph_gets_the_environment_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/serving.md; `hopgate serve` and `hopgate mcp` load it."""
    monkeypatch.setenv("HOPGATE_LIMITS", "")  # so that it is restored
    monkeypatch.delenv("HOPGATE_LIMITS")
    graphs = {"hopgate": {"path": "./graph.py:graph"}}
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": graphs, "env": ".env"}))
    (tmp_path / "graph.py").write_text("import hopgate\ngraph = hopgate.build_graph(name='mine')\n")
    (tmp_path / ".env").write_text("HOPGATE_LIMITS='{\"max_hops\": 1}'\n")
    found = project.load(tmp_path)
    assert found and (found.name, found.resources.limits.allows(max_hops=2)) == ("mine", False)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "langgraph.json cannot be read: JSONDecodeError"),
        ("{}", "langgraph.json cannot be read: KeyError: 'graphs'"),
        ('{"graphs": {"a": "./nowhere.py:graph"}}', "'./nowhere.py:graph', which cannot be loaded"),
        ('{"graphs": {"a": "hopgate.graphs.adaptive:grahp"}}', "adaptive:grahp', which cannot be"),
    ],
)
def test_a_langgraph_json_that_cannot_be_used_is_named(
    tmp_path: Path, config: str, message: str
) -> None:
    (tmp_path / "langgraph.json").write_text(config)
    with pytest.raises(ValueError, match=re.escape(message)):
        project.load(tmp_path)


def test_a_port_that_is_taken_is_one_line(served: Serving, run: Callable[..., Ran]) -> None:
    port = served.url.rpartition(":")[2]
    one_line(run("serve", "--port", port), 1, f"127.0.0.1:{port} cannot be used", "--port")
    one_line(run("serve", "--host", "no host"), 1, "no host:8000 cannot be used", "--host")
    one_line(run("serve", "--alpha", "2"), 2, "--alpha is 2")


# Parts


@pytest.mark.parametrize(
    ("citation", "url"),
    [
        ({"source": "https://en.wikipedia.org/wiki/Ada"}, "https://en.wikipedia.org/wiki/Ada"),
        ({"source": "a b/c.pdf", "page": 3}, "a%20b/c.pdf#page=3"),
        ({"source": "javascript:alert(1)"}, "javascript%3Aalert%281%29#id"),
        ({"source": "//evil.example/x"}, "%2F/evil.example/x#id"),
        ({}, "#id"),
    ],
)
def test_a_source_s_address_is_a_web_address_or_a_path(citation: Any, url: str) -> None:
    given = {"id": "id", "title": "T", "quote": "q", **citation}
    (found,) = annotations("Yes", [given])
    assert found["url_citation"]["url"] == url
    assert (found["url_citation"]["start_index"], found["url_citation"]["end_index"]) == (0, 3)


def test_the_assistant_s_marks_are_dropped_from_the_history() -> None:
    messages = [user("a"), {"role": "assistant", "content": "It is [1]. So [2, 3]."}, user("b [1]")]
    asked = ChatRequest(model="hopgate", messages=messages)
    assert [each.text for each in asked.history()] == ["a", "It is. So.", "b [1]"]


def test_a_stream_never_shows_the_wish_to_search(fake: FakeOpenAI) -> None:
    """With the gate `reply`, the first tokens say whether the stream goes on or is dropped."""
    client = in_process(gate="reply", model="openai:fake", profile="gpt-4o")
    for first, shown in (
        (["[sea", "rch]"], ["In", " 1858 [1]."]),
        (["[S", "ure] Rain", " falls."], ["[Sure] Rain", " falls."]),
    ):
        fake.says(streamed(*first), streamed("In", " 1858 [1]."))
        chunks = client.chat.completions.create(
            model="hopgate", messages=[user(QUESTION)], stream=True
        )
        texts = [each.choices[0].delta.content for each in chunks]
        assert [each for each in texts if each] == shown
