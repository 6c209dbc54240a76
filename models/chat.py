"""From a model's name to a chat model, and the one way in which nodes call it.

Names: `openai:NAME` for any OpenAI-compatible endpoint (`OPENAI_BASE_URL`),
`local:smollm2` for the embedded model, `auto` for the first that is configured.
"""

import asyncio
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from hopgate.models import local

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage

Layout = Literal["inline", "turns"]
GateMode = Literal["ta-are", "confidence"]

LOCAL = "local:smollm2"
OPENAI = "https://api.openai.com/v1"
DEFAULT_OPENAI_MODEL = "gpt-4o-mini"
TIMEOUT_SECONDS = 60.0
MAX_RETRIES = 2  # of time-outs, 408, 409, 429 and 5xx; never of 400 or 401
MAX_CALLS = 1000  # at once to one model, as OpenAI's own client; httpx allows 100
IDLE_CONNECTIONS = 20  # each call looks at every one of them: 100 cost five times the CPU
MIN_KEY_CHARS = 8  # shorter ones, such as "none", are no secrets
CHARS_PER_TOKEN = 4  # of English prose, rounded down
TOP_LOGPROBS = 20  # the most that the OpenAI protocol allows
THINKING_TOKENS = "HOPGATE_THINKING_TOKENS"
# Thoughts that an endpoint leaves in the reply; some open them in the prompt, unseen.
_THOUGHTS = re.compile(r"\A.*</think>|<think>.*\Z", re.IGNORECASE | re.DOTALL)
# What a model that cannot stop writes: it would keep whoever reads the reply busy for minutes.
_ENDLESS = re.compile(r"(\W{200})\W+")
WITHOUT_LOGPROBS = "use gate 'ta-are' or 'vanilla'"


class ModelError(RuntimeError):
    """The model could not be reached or refused the request; names the endpoint."""


@dataclass(frozen=True)
class Completion:
    """One answer of a chat model, with what it cost.

    Attributes:
        text: The answer, stripped, without what a reasoning model thought aloud.
        prompt_tokens: Tokens read, as the endpoint counted them (0 if it did not).
        completion_tokens: Tokens written, likewise.
        logprobs: Per answer token, the likeliest tokens and their log-probability;
            empty when they were not asked for or not given.
        id: The message's id, under which its tokens were streamed.
        prompt_bytes: Size of the prompt's texts in UTF-8.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[dict[str, float], ...] = ()
    id: str | None = None
    prompt_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True)
class ChatModel:
    """A LangChain chat model with what hopgate has to know about it.

    Attributes:
        name: The name it was asked for, used in messages.
        endpoint: Where it answers, used in messages.
        client: The LangChain model.
        layout: Prompt layout that suits it: one message as the papers print it
            (`inline`), or demonstrations as chat turns (`turns`).
        gate: Gate mode that suits it.
        gate_threshold: Least probability of Yes that means retrieval, for `confidence`.
        draft_threshold: Least uncertainty of a direct answer that means retrieval, for `draft`.
            The default is about that of a choice between two equally likely tokens, and not
            measured: calibrate it for your model.
        tiny: Whether answers deserve a warning.
        evidence_chars: How much passage text fits into one prompt, in characters.
        prompt_chars: The most characters of one prompt that the operator allows; None: any.
        thinking_tokens: How many tokens a reasoning model may write before its reply, for which
            every call leaves room; 0 for a model that does not think.
    """

    name: str
    endpoint: str
    client: "BaseChatModel"
    layout: Layout = "inline"
    gate: GateMode = "ta-are"
    gate_threshold: float = 0.5
    draft_threshold: float = 0.25
    tiny: bool = False
    evidence_chars: int = 48_000  # about 12,000 tokens
    prompt_chars: int | None = None
    thinking_tokens: int = 0


def resolve(name: str) -> str:
    """Return the full name that `name` stands for.

    `auto` becomes `openai:$OPENAI_MODEL` (default gpt-4o-mini) when a key or a base
    URL is set, `local:smollm2` otherwise.

    Raises:
        ValueError: The name is of no known form, or needs a key that is not set.
    """
    configured = base_url() or api_key()
    if name == "auto":
        if not configured:
            return LOCAL
        return f"openai:{os.environ.get('OPENAI_MODEL') or DEFAULT_OPENAI_MODEL}"
    if name == LOCAL:
        return name
    provider, _, model = name.partition(":")
    if provider != "openai" or not model:
        raise ValueError(f"model {name!r} is not known; use auto, openai:NAME or {LOCAL}")
    if not configured:
        raise ValueError(
            f"model {name!r} needs OPENAI_API_KEY, or OPENAI_BASE_URL for a server without a key; "
            f"set one of them or use {LOCAL}"
        )
    return name


def base_url() -> str | None:
    """Return the endpoint that the environment names, or None for OpenAI's own.

    Raises:
        ValueError: It is no HTTP address.
    """
    url = (os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or "").strip()
    if not url:
        return None
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(
            f"OPENAI_BASE_URL {url.rpartition('@')[2]!r} is not an address such as "
            "http://127.0.0.1:8000/v1; correct it"
        )
    return url


def api_key() -> str | None:
    """Return the key that the environment holds, without white space around it, or None."""
    return (os.environ.get("OPENAI_API_KEY") or "").strip() or None


def thinking_tokens() -> int:
    """Return how much room the environment leaves for thoughts; 0 by default.

    Raises:
        ValueError: It is no number of tokens.
    """
    given = (os.environ.get(THINKING_TOKENS) or "0").strip()
    if not (given.isascii() and given.isdigit()):
        raise ValueError(f"{THINKING_TOKENS} {given!r} is no number of tokens; give 2000 or so")
    return int(given)


def without_password(url: str) -> str:
    """Return an address as it may be shown: user name and password left out."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


# The client's connections belong to one event loop, so there is one per loop.
_Key = tuple[str, str | None]
_loaded: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, asyncio.Task[ChatModel]]] = (
    WeakKeyDictionary()
)


async def load(name: str) -> ChatModel:
    """Return the chat model called `name`, made once per event loop and endpoint.

    Raises:
        ValueError: See `resolve`.
        RuntimeError: The embedded model is asked for and not installed.
    """
    key = (resolve(name), base_url())
    models = _loaded.setdefault(asyncio.get_running_loop(), {})
    if key not in models:
        models[key] = asyncio.create_task(asyncio.to_thread(_make, key[0]))
    try:
        return await asyncio.shield(models[key])
    except Exception:
        models.pop(key, None)  # so that the next request tries again
        raise


def _make(name: str) -> ChatModel:
    import httpx
    from langchain_openai import ChatOpenAI
    from pydantic import SecretStr

    if name == LOCAL:
        endpoint, key = local.serve()
    else:
        endpoint = base_url() or OPENAI
        key = api_key() or "none"
    thinking = 0 if name == LOCAL else thinking_tokens()
    client = ChatOpenAI(
        model=name.partition(":")[2],
        base_url=endpoint,
        api_key=SecretStr(key),
        temperature=None if thinking else 0,  # reasoning models refuse 0, or repeat themselves
        top_p=1,
        timeout=TIMEOUT_SECONDS,
        max_retries=MAX_RETRIES,
        stream_usage=True,
        # A proxy is never meant for the embedded server.
        http_async_client=httpx.AsyncClient(
            timeout=TIMEOUT_SECONDS,
            limits=httpx.Limits(
                max_connections=MAX_CALLS, max_keepalive_connections=IDLE_CONNECTIONS
            ),
            trust_env=name != LOCAL,
        ),
    )
    if name == LOCAL:
        return ChatModel(
            name,
            endpoint,
            client,
            layout="turns",
            gate="confidence",
            gate_threshold=0.015,  # this and the next: docs/results/gate.md
            draft_threshold=0.75,
            tiny=True,
            evidence_chars=1_200,  # about three passages: with more it loses the thread
        )
    return ChatModel(name, without_password(endpoint), client, thinking_tokens=thinking)


def wrap(client: "BaseChatModel") -> ChatModel:
    """Give any LangChain chat model of an app the shape that the nodes use."""
    name = str(getattr(client, "model_name", None) or type(client).__name__)
    endpoint = without_password(str(getattr(client, "openai_api_base", None) or "its endpoint"))
    return ChatModel(name, endpoint, client, thinking_tokens=thinking_tokens())


async def complete(
    model: ChatModel,
    messages: Sequence["BaseMessage"],
    *,
    max_tokens: int,
    stop: list[str] | None = None,
    logprobs: bool = False,
    streamed: bool = False,
) -> Completion:
    """Ask the model once and return its answer with its cost.

    Args:
        model: The model.
        messages: The prompt.
        max_tokens: Most tokens to write, besides the model's `thinking_tokens`.
        stop: Texts that end the answer.
        logprobs: Ask for the likeliest tokens at each position.
        streamed: Whether this is the answer, whose tokens LangGraph's `messages` stream shows;
            decisions and thoughts are kept out of it.

    Raises:
        ValueError: The prompt is longer than the model's `prompt_chars`.
        ModelError: No answer after the client's retries, or thoughts that left no room for one;
            the message names the endpoint.
    """
    chars = sum(len(message.text) for message in messages)
    if model.prompt_chars is not None and chars > model.prompt_chars:
        raise ValueError(
            f"a prompt has {chars} characters: this server allows at most {model.prompt_chars} "
            "(prompt_chars); ask on a new thread, or for less evidence (max_evidence_tokens)"
        )
    options: dict[str, Any] = {"max_tokens": max_tokens + model.thinking_tokens}
    if stop:
        options["stop"] = stop
    if logprobs:
        options |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    try:
        tags = [] if streamed else ["nostream"]
        reply = await model.client.ainvoke(list(messages), {"tags": tags}, **options)
    except Exception as error:
        raise ModelError(_explain(model, error, logprobs)) from error
    usage = reply.usage_metadata
    return Completion(
        text=_said(model, reply, options["max_tokens"]),
        prompt_tokens=usage["input_tokens"] if usage else 0,
        completion_tokens=usage["output_tokens"] if usage else 0,
        logprobs=_top_logprobs(reply.response_metadata),
        id=reply.id,
        prompt_bytes=sum(len(message.text.encode("utf-8", "replace")) for message in messages),
    )


def _said(model: ChatModel, reply: "AIMessage", limit: int) -> str:
    """Give the text of a reply, without thoughts."""
    text = _THOUGHTS.sub("", reply.text)
    if not text and reply.response_metadata.get("finish_reason") == "length":
        raise ModelError(
            f"model {model.name} at {model.endpoint} used up {limit} tokens and said nothing: a "
            f"reasoning model needs room to think; set {THINKING_TOKENS}, say to 2000"
        )
    return _readable(text)


def _readable(text: str) -> str:
    # A lone surrogate could be neither printed nor stored.
    return _ENDLESS.sub(r"\1", text.encode("utf-8", "replace").decode()).strip()


def _top_logprobs(metadata: dict[str, Any]) -> tuple[dict[str, float], ...]:
    content = (metadata.get("logprobs") or {}).get("content") or []
    return tuple(
        _by_text(position["top_logprobs"]) for position in content if position.get("top_logprobs")
    )


def _by_text(tops: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Add up tokens of the same text; every special token's text can be empty."""
    found: dict[str, float] = {}
    for top in tops:
        token, logprob = str(top["token"]), float(top["logprob"])
        found[token] = logprob if token not in found else _log_sum(found[token], logprob)
    return found


def _log_sum(a: float, b: float) -> float:
    """Return log(exp(a) + exp(b)), at most 0."""
    probability = math.exp(a) + math.exp(b)
    return min(0.0, math.log(probability)) if probability else a


def _explain(model: ChatModel, error: Exception, logprobs: bool) -> str:
    causes = dict.fromkeys(" ".join(str(each).split()) for each in (error, error.__cause__) if each)
    what = _without_key(model, " ".join(filter(None, causes)))[:300] or type(error).__name__
    status = getattr(error, "status_code", None)
    ours = model.name.startswith("openai:")
    key, url = ("OPENAI_API_KEY", "OPENAI_BASE_URL") if ours else ("its key", "its address")
    advice = {
        401: f"check {key}",
        403: f"check {key} and its rights",
        404: f"check the model's name and {url}",
        429: "the endpoint limits its rate; try again later",
    }.get(status or 0, f"check {url} and that the server is up")
    if model.name == LOCAL:
        advice = "ask again, or use another model"
    if status in (400, 422):
        advice = "the endpoint refused the request"
        if logprobs:
            advice += f"; where it gives no log-probabilities, {WITHOUT_LOGPROBS}"
    return f"model {model.name} at {model.endpoint} did not answer: {what}; {advice}"


def _without_key(model: ChatModel, text: str) -> str:
    """Blot out the API key, which some endpoints repeat in their errors."""
    secret = getattr(model.client, "openai_api_key", None)
    key: str = secret.get_secret_value() if secret and hasattr(secret, "get_secret_value") else ""
    return text.replace(key, "***") if len(key) >= MIN_KEY_CHARS else text
