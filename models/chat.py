"""Chat models by name, and the one function that calls them.

Names: `openai:NAME` for any OpenAI-compatible endpoint (`OPENAI_BASE_URL`),
`local:smollm2` for the embedded model, `PROVIDER:NAME` for LangChain's other
providers, `auto` for the first of the first two that is configured.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import numpy as np

from hopgate.common.errors import one_line
from hopgate.common.faults import SERVER_ERROR
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
MAX_RETRIES = 2  # after time-outs, 408, 409, 429 and 5xx; never after 400 or 401
GIVE_UP_SECONDS = 200.0  # with all retries, for providers that know no time-out
LIMIT_FIELDS = ("max_tokens", "max_output_tokens", "num_predict")
"""Names for the maximum length of a reply in LangChain's models."""
SAMPLING = ("temperature", "top_p", "seed", "reasoning_effort")
"""Fields of LangChain's models that a request may set, and that some models refuse."""
STOP = "stop"  # refused by some reasoning models too
MIN_KEY_CHARS = 8  # shorter ones, such as "none", are not secrets
CHARS_PER_TOKEN = 4  # of English prose, rounded down
MOST_CHARS_PER_TOKEN = 16
"""Of any reply, on average: a long word with a token of its own has fewer. Longer replies are cut,
since some endpoints ignore `max_tokens`."""
MAX_CHARS_WITH_THOUGHTS = 2_000_000  # of a reply before its thoughts are dropped
MAX_INPUT_TOKENS = 32_000
"""Of a prompt, for models whose context LangChain does not know."""
THINKING_TOKENS = 8_000
"""Room for a reasoning model's thoughts, on top of the reply's."""
TOP_LOGPROBS = 20  # the most that the OpenAI protocol allows
# Thoughts that an endpoint leaves in the reply; some open the tag in the prompt, unseen.
_THOUGHTS = re.compile(r"\A.*</think>|<think>.*\Z", re.IGNORECASE | re.DOTALL)
# The same in an answer, which may itself speak of such tags.
_FIRST_THOUGHTS = re.compile(r"\A(?:\s*<think>.*?(?:</think>|\Z))+\s*", re.IGNORECASE | re.DOTALL)
_UNOPENED = re.compile(
    r"\A(?:(?!<think>).)*?(?:\n\s*</think>|</think>(?=\s*(?:\n|\Z)))\s*", re.IGNORECASE | re.DOTALL
)
WITHOUT_LOGPROBS = "use gate 'ta-are' or 'vanilla'"


class ModelError(RuntimeError):
    """The model could not be reached or refused the request; the message names the endpoint.

    Attributes:
        fault: What failed, see `hopgate.common.faults`.
        retry_after: The endpoint's `Retry-After`, if it sent one.
    """

    def __init__(self, text: str, fault: str = "model_reply", retry_after: str | None = None):
        """Say what failed."""
        super().__init__(text)
        self.fault, self.retry_after = fault, retry_after


class OnlyThoughts(ModelError):
    """The model spent a whole reply on thoughts; from now on its calls leave room for them."""


@dataclass
class Learned:
    """Facts learnt about a model from its calls; copies of the model share them.

    Attributes:
        refused: Names of sampling fields that the endpoint refuses, perhaps `stop` among them.
        thinks: Whether thoughts come before its replies, and need room.
        unseen: Whether its thoughts start without a `<think>`, so that they look like a reply.
    """

    refused: set[str] = field(default_factory=set)
    thinks: bool = False
    unseen: bool = False


@dataclass(frozen=True)
class Completion:
    """One reply of a chat model, with its cost.

    Attributes:
        text: The reply, stripped, without a reasoning model's thoughts.
        prompt_tokens: Tokens read, as counted by the endpoint (0 if it does not count).
        completion_tokens: Tokens written, likewise.
        logprobs: For each token of the reply, the likeliest tokens and their log-probabilities;
            empty if not requested or not returned.
        id: The message's id, which its streamed tokens carry.
        cut: Whether the reply ended at its maximum length.
        left_out: Names of the sampling settings that the model does not take.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    logprobs: tuple[dict[str, float], ...] = ()
    id: str | None = None
    cut: bool = False
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChatModel:
    """A LangChain chat model with its settings in hopgate.

    Attributes:
        name: Its name, used in messages.
        endpoint: Its address, used in messages.
        client: The LangChain model.
        layout: Its prompt layout: one message as the papers print it (`inline`), or demonstrations
            as chat turns (`turns`).
        gate: The gate mode that suits it.
        gate_threshold: The `confidence` gate retrieves if P(Yes) is at least this.
        draft_threshold: The `draft` gate retrieves if the uncertainty is at least this. The
            default is about that of a choice between two equally likely tokens; it is not
            measured, so calibrate it for your model.
        tiny: Whether its answers need a warning.
        evidence_chars: Maximum characters of passage text in one prompt.
        output_tokens: Maximum tokens of a reply that has no other limit; None: the endpoint's.
        learned: Facts learnt about it from its calls.
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
    output_tokens: int | None = None
    learned: Learned = field(default_factory=Learned, compare=False)

    @property
    def text_only(self) -> bool:
        """Whether LangChain's profile says that it reads no images."""
        return self.tiny or (self.client.profile or {}).get("image_inputs") is False

    @property
    def prompt_tokens(self) -> int:
        """Maximum tokens of a prompt by LangChain's profile: less an eighth, for the answer."""
        known = (self.client.profile or {}).get("max_input_tokens")
        return int(known or MAX_INPUT_TOKENS) * 7 // 8

    def room(self, max_tokens: int) -> int:
        """Return how many tokens a reply of `max_tokens` may have with its thoughts."""
        return max_tokens + THINKING_TOKENS * self.learned.thinks


def resolve(name: str) -> str:
    """Return the full name that `name` stands for.

    `auto` becomes `openai:$OPENAI_MODEL` (default gpt-4o-mini) when a key or a base
    URL is set, `local:smollm2` otherwise.

    Raises:
        ValueError: The name is unknown, or needs a key that is not set. Another provider's name
            and key are checked when the model is loaded.
    """
    configured = base_url() or api_key()
    if name == "auto":
        if not configured:
            return LOCAL
        return f"openai:{os.environ.get('OPENAI_MODEL') or DEFAULT_OPENAI_MODEL}"
    if name == LOCAL:
        return name
    provider, _, model = name.partition(":")
    if not (provider and model) or provider == "local":
        raise ValueError(
            f"unknown model {name!r}; use auto, openai:NAME, {LOCAL}, or PROVIDER:NAME such as "
            "anthropic:NAME or ollama:NAME"
        )
    if provider == "openai" and not configured:
        raise ValueError(
            f"model {name!r} needs OPENAI_API_KEY, or OPENAI_BASE_URL for a server without a key; "
            f"set one of them or use {LOCAL}"
        )
    return name


def base_url() -> str | None:
    """Return the endpoint set in the environment, or None for OpenAI's own.

    Raises:
        ValueError: It is not an HTTP address.
    """
    url = (os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE") or "").strip()
    if not url:
        return None
    if re.match(r"https?://[^/\s]", url):
        return url
    raise ValueError(
        f"OPENAI_BASE_URL {url.rpartition('@')[2]!r} is not a valid address; use one such as "
        "http://127.0.0.1:8000/v1"
    )


def api_key() -> str | None:
    """Return the API key set in the environment, stripped, or None."""
    return (os.environ.get("OPENAI_API_KEY") or "").strip() or None


def without_password(url: str) -> str:
    """Return an address without user name and password, safe to show."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


# A client's connections belong to one event loop, so there is one client per loop. Each comes with
# the generator that closes its connections.
_Key = tuple[str, str | None]
_Loading = asyncio.Task[tuple[ChatModel, AsyncIterator[None]]]
_loaded: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Key, _Loading]] = WeakKeyDictionary()


async def load(name: str) -> ChatModel:
    """Return the chat model `name`, created once per event loop and endpoint.

    Raises:
        ValueError: See `resolve`; or the provider is unknown, or refuses its settings.
        RuntimeError: The embedded model or the provider's package is not installed.
    """
    key = (resolve(name), base_url())
    models = _loaded.setdefault(asyncio.get_running_loop(), {})
    if key not in models:
        models[key] = asyncio.create_task(_open(key[0]))
    try:
        return (await asyncio.shield(models[key]))[0]
    except Exception:
        models.pop(key, None)  # the next request tries again
        raise


async def _open(name: str) -> tuple[ChatModel, AsyncIterator[None]]:
    create = _create_openai if name == LOCAL or name.startswith("openai:") else _create_other
    model = await asyncio.to_thread(create, name)
    closing = _close_with_loop(model)
    await anext(closing)
    return model, closing


async def _close_with_loop(model: ChatModel) -> AsyncIterator[None]:
    """Close the model's connections when the event loop ends: it closes its generators last."""
    client: Any = model.client
    try:
        yield
    finally:
        if own := getattr(client, "http_async_client", None):
            await own.aclose()
        _loaded.pop(asyncio.get_running_loop(), None)


def _create_other(name: str) -> ChatModel:
    """Create the model of a provider through LangChain, which reads its key from the environment.

    Raises:
        ValueError: The provider is unknown, or refuses its settings.
        RuntimeError: The provider's package is not installed.
    """
    from langchain.chat_models import init_chat_model

    provider, _, model = name.partition(":")
    try:
        client = init_chat_model(
            model,
            model_provider=provider,
            temperature=0,
            timeout=TIMEOUT_SECONDS,
            max_retries=MAX_RETRIES,
        )
    except ImportError as error:
        raise RuntimeError(f"model {name!r} cannot be used: {one_line(error)}") from error
    except Exception as error:  # each provider has its own for a missing key
        raise ValueError(f"model {name!r} cannot be used: {_refusal(error)}") from error
    return replace(wrap(client), name=name, endpoint=_address(client) or f"{provider}'s API")


def _refusal(error: Exception) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):  # its own text shows the settings, and keys with them
        return "; ".join(one_line(each["msg"]) for each in error.errors(include_input=False))
    return one_line(error)[:600]


def _address(client: "BaseChatModel") -> str | None:
    """Return the address that a client calls, if it says so; each provider names it differently."""
    names = ("openai_api_base", "azure_endpoint", "anthropic_api_url", "base_url", "endpoint")
    found = (getattr(client, name, None) for name in names)
    return next((without_password(each) for each in found if each and isinstance(each, str)), None)


def _create_openai(name: str) -> ChatModel:
    import httpx
    from langchain_openai import ChatOpenAI
    from openai import DefaultAioHttpClient
    from pydantic import SecretStr

    embedded = name == LOCAL
    endpoint, key = local.serve() if embedded else (base_url() or OPENAI, api_key() or "none")
    url = httpx.URL(endpoint)
    client = ChatOpenAI(
        model=name.partition(":")[2],
        base_url=without_password(endpoint),
        api_key=SecretStr(key),
        temperature=0,
        top_p=1 if embedded else None,  # its server has a default of its own
        timeout=TIMEOUT_SECONDS,
        max_retries=MAX_RETRIES,
        stream_usage=True,
        profile={"max_input_tokens": local.CONTEXT_TOKENS} if embedded else None,
        http_async_client=DefaultAioHttpClient(  # many calls at once cost far less than over httpx
            auth=(url.username, url.password) if url.userinfo else None,  # it refuses both
            timeout=TIMEOUT_SECONDS,
            trust_env=not embedded,  # never reach the embedded server through a proxy
        ),
    )
    model = ChatModel(name, without_password(endpoint), client)
    return replace(model, **_EMBEDDED) if embedded else model


_EMBEDDED: dict[str, Any] = {
    "layout": "turns",
    "gate": "confidence",
    "gate_threshold": 0.015,  # this and the next line: docs/results/gate.md
    "draft_threshold": 0.75,
    "tiny": True,
    "evidence_chars": 1_200,  # about three passages; more confuse it
    "output_tokens": 300,  # it often repeats itself without end
}


def evidence_chars(name: str) -> int:
    """Return the maximum characters of passage text in one prompt of a named model."""
    return int(_EMBEDDED["evidence_chars"]) if name == LOCAL else ChatModel.evidence_chars


def wrap(client: "BaseChatModel") -> ChatModel:
    """Return an app's LangChain chat model as a `ChatModel`.

    Raises:
        ValueError: It is a name.
    """
    if isinstance(client, str):
        raise ValueError(
            f"model is {client!r}: give a LangChain chat model, or a name in the settings, as in "
            'context=Context(model="openai:gpt-4o")'
        )
    name = str(getattr(client, "model_name", None) or type(client).__name__)
    endpoint = _address(client) or "its endpoint"
    return ChatModel(name, endpoint, client)


async def complete(
    model: ChatModel,
    messages: Sequence["BaseMessage"],
    *,
    max_tokens: int | None,
    stop: Sequence[str] = (),
    sampling: Mapping[str, Any] = MappingProxyType({}),
    logprobs: bool = False,
    streamed: bool = False,
) -> Completion:
    """Call the model once and return its reply with its cost.

    A sampling field or `stop` that the endpoint refuses is left out, and the model is remembered;
    so is one that needs room for thoughts.

    Args:
        model: The model.
        messages: The prompt.
        max_tokens: Maximum tokens of the reply, without thoughts; None: the model's own limit.
        stop: Texts that end the reply.
        sampling: Values for fields of `SAMPLING`.
        logprobs: Request the likeliest tokens at each position.
        streamed: Whether LangGraph's `messages` stream shows the tokens, as it should for the
            answer only, not for decisions and thoughts.

    Raises:
        OnlyThoughts: The reply had room for nothing but thoughts; the next one has more.
        ModelError: No reply after the client's retries; the message names the endpoint.
    """
    limit = model.output_tokens if max_tokens is None else model.room(max_tokens)
    options: dict[str, Any] = {"config": {"tags": [] if streamed else ["nostream"]}}
    if stop:
        options[STOP] = list(stop)
    if logprobs:
        options |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    if max_tokens is None and _is_openai(model):
        options["stream"] = True  # the client's time-out is then that of a piece, not of the whole
    try:
        async with asyncio.timeout(None if max_tokens is None else GIVE_UP_SECONDS):
            reply = await _ask(model, messages, limit, sampling, options)
        tops = _top_logprobs(reply.response_metadata)
    except Exception as error:
        text, fault = _explain(model, error, logprobs), _fault(error)
        headers = getattr(getattr(error, "response", None), "headers", {})
        raise ModelError(text, fault, headers.get("retry-after")) from error
    ends_of_streams = {"finish_reason", "status"}  # of chat completions, and of responses
    if _is_openai(model) and ends_of_streams.isdisjoint(reply.response_metadata):
        raise ModelError(
            f"the reply of model {model.name} at {model.endpoint} broke off before its end; ask "
            "again, and read the endpoint's log if it happens often"
        )
    usage = reply.usage_metadata
    return Completion(
        text=_reply_text(model, reply, max_tokens),
        prompt_tokens=usage["input_tokens"] if usage else 0,
        completion_tokens=usage["output_tokens"] if usage else 0,
        logprobs=tops,
        id=reply.id,
        cut=_was_cut(reply.response_metadata),
        left_out=tuple(each for each in (*sampling, *options) if not _takes(model, each)),
    )


async def _ask(
    model: ChatModel,
    messages: Sequence["BaseMessage"],
    limit: int | None,
    sampling: Mapping[str, Any],
    options: Mapping[str, Any],
) -> "AIMessage":
    """Call the client, and call it again without a field that the endpoint refuses."""
    while True:
        client, limited = _configured(model, limit, sampling)
        taken = {name: value for name, value in options.items() if _takes(model, name)}
        try:
            return await client.ainvoke(list(messages), **limited, **taken)
        except Exception as error:
            if not (name := _refused(model, error, (*SAMPLING, *({STOP} & options.keys())))):
                raise
            model.learned.refused.add(name)


def _refused(model: ChatModel, error: Exception, fields: Sequence[str]) -> str | None:
    """Return the field that an endpoint's error is about, if the call may have set it."""
    if getattr(error, "status_code", 400) not in (400, 422):
        return None
    named = str(getattr(error, "param", None) or error)
    sent = (name for name in fields if name not in model.learned.refused)
    return next((name for name in sent if re.search(rf"\b{name}\b", named)), None)


def _takes(model: ChatModel, name: str) -> bool:
    """Return whether a setting has an effect on the model; those of `SAMPLING` are fields."""
    known = name not in SAMPLING or name in _fields(model)
    return known and name not in model.learned.refused


def _fields(model: ChatModel) -> Container[str]:
    return getattr(type(model.client), "model_fields", {})


def _configured(
    model: ChatModel, limit: int | None, sampling: Mapping[str, Any]
) -> tuple["BaseChatModel", dict[str, Any]]:
    """Return a client with this limit and sampling, and the options of its calls.

    Providers differ in the options that a call may set, but each client has a field for them.
    """
    changes = {name: value for name, value in sampling.items() if _takes(model, name)}
    changes |= dict.fromkeys(model.learned.refused - {STOP})
    names = () if _is_openai(model) else LIMIT_FIELDS
    own = next((name for name in names if name in _fields(model)), None)
    if own and limit:
        changes[own] = limit
    client = model.client.model_copy(update=changes) if changes else model.client
    return client, {"max_tokens": limit} if limit and not own else {}


def _is_openai(model: ChatModel) -> bool:
    from langchain_openai.chat_models.base import BaseChatOpenAI

    return isinstance(model.client, BaseChatOpenAI)


def _reply_text(model: ChatModel, reply: "AIMessage", max_tokens: int | None) -> str:
    whole, learned = reply.text[:MAX_CHARS_WITH_THOUGHTS], model.learned
    whole = whole.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored
    learned.unseen |= _UNOPENED.match(whole) is not None
    if max_tokens is None:
        return without_thoughts(whole).strip()
    text = _THOUGHTS.sub("", whole)
    if not text.strip() and _was_cut(reply.response_metadata):
        tokens, error = model.room(max_tokens), ModelError if learned.thinks else OnlyThoughts
        learned.thinks = True
        raise error(
            f"model {model.name} at {model.endpoint} used {tokens} tokens on thoughts and came to "
            "no reply; lower its reasoning effort, or use another model"
        )
    return text.strip()[: MOST_CHARS_PER_TOKEN * max_tokens].rstrip()


def without_thoughts(text: str) -> str:
    """Return an answer without the thoughts that an endpoint left before it."""
    return _FIRST_THOUGHTS.sub("", _UNOPENED.sub("", text))


def _was_cut(metadata: dict[str, Any]) -> bool:
    """Return whether a reply ended at its maximum length, as providers say it."""
    reasons = (metadata.get(name) for name in ("finish_reason", "stop_reason", "done_reason"))
    return any(str(each).lower() in ("length", "max_tokens") for each in reasons)


def _top_logprobs(metadata: dict[str, Any]) -> tuple[dict[str, float], ...]:
    """Return the likeliest tokens at each position."""
    found = metadata.get("logprobs")
    content = (found.get("content") if isinstance(found, dict) else found) or []  # Ollama's: a list
    tops = (position.get("top_logprobs") for position in content)
    return tuple(_by_text(each) for each in tops if each)


def _by_text(tops: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Sum the probabilities of tokens with the same text; special tokens' text can be empty."""
    found: dict[str, float] = {}
    for top in tops:
        token, logprob = str(top["token"]), min(0.0, float(top["logprob"]))
        both = np.logaddexp(found[token], logprob) if token in found else logprob
        found[token] = min(0.0, float(both))
    return found


_FAULT_OF_STATUS = {401: "auth", 403: "auth", 408: "timeout", 429: "quota", 504: "timeout"}
_DISCONNECTED = ("RemoteProtocolError", "ServerDisconnectedError")
_UNREAD = (ValueError, IndexError, KeyError, TypeError, AttributeError)
"""Raised by clients that cannot read a reply."""


def _fault(error: BaseException) -> str:
    """Return what failed, see `hopgate.common.faults`."""
    causes = _causes(error)
    if status := getattr(error, "status_code", None):
        kind = _FAULT_OF_STATUS.get(status, "refusal" if status < SERVER_ERROR else "error")
    elif _lost(causes):
        kind = "connection"
    elif any("Timeout" in type(each).__name__ for each in causes):
        kind = "timeout"
    else:
        kind = "reply" if isinstance(error, _UNREAD) else "error"
    return f"model_{kind}"


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _lost(causes: Sequence[BaseException]) -> list[BaseException]:
    """Return the errors of a connection that was refused, reset or closed.

    OpenAI's client over aiohttp says "timed out" of these too.
    """

    def is_lost(each: BaseException) -> bool:
        is_late = isinstance(each, TimeoutError)
        return type(each).__name__ in _DISCONNECTED or (isinstance(each, OSError) and not is_late)

    return list(filter(is_lost, causes))


def _explain(model: ChatModel, error: Exception, logprobs: bool) -> str:
    causes = _lost(_causes(error))[-1:] or _causes(error)[:2]
    cause = " ".join(dict.fromkeys(one_line(each) for each in causes))
    cause = _without_key(model, cause.strip())[:300]
    if _is_openai(model) and isinstance(error, _UNREAD):
        cause = "its reply is not a chat completion, or was cut short"
    status = getattr(error, "status_code", 0)
    ours = model.name.startswith("openai:")
    key, url = ("OPENAI_API_KEY", "OPENAI_BASE_URL") if ours else ("its key", "its address")
    refused = "the endpoint refused the request"
    advice = {
        **{400: refused, 422: refused, 401: f"check {key}", 403: f"check {key}"},
        404: f"check the model's name and {url}",
        429: "the endpoint's rate limit is reached; try again later",
    }.get(status, f"check {url} and that the server is up")
    if logprobs and (status in (400, 422) or not (status or _is_openai(model))):
        advice += f"; if it does not return log-probabilities, {WITHOUT_LOGPROBS}"
    cause = cause or type(error).__name__
    return f"model {model.name} at {model.endpoint} did not answer: {cause}; {advice}"


def _without_key(model: ChatModel, text: str) -> str:
    """Mask the API key, which some endpoints repeat in their errors."""
    from pydantic import SecretStr

    fields = getattr(model.client, "__dict__", {}).values()
    for key in (each.get_secret_value() for each in fields if isinstance(each, SecretStr)):
        text = text.replace(key, "***") if len(key) >= MIN_KEY_CHARS else text
    return text
