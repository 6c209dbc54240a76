"""One chat completion of OpenAI's API: a run of the graph, as a document or as chunks of a stream.

A client sends the whole conversation each time. Its system messages shape the answer, its earlier
messages are the history. Runs are stored only if the operator wants to keep them.
"""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from pydantic import BaseModel, ConfigDict, Field

from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.models.chat import SAMPLING
from hopgate.nodes.answers.reading import settled
from hopgate.nodes.prompts.templates import SEARCH
from hopgate.nodes.run import events
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.identity import identity
from hopgate.nodes.run.state import Citation
from hopgate.nodes.texts.text import CODE, MARK, keep_marks, outside_code

PIECES = 500
"""A long reply is read for the next piece when it has grown by this part, which costs little."""
OWNER = "owner"
"""Key of a kept run's metadata: the name of its user, empty without users."""
SHOWN = ("citations", "decision", "hops", "usage")
"""Keys of the final state that a completion carries under `hopgate`."""

Json = dict[str, Any]
Part = tuple[Literal["answering", "token", "state"], Any]


class StreamOptions(BaseModel):
    """How to stream."""

    include_usage: bool | None = None


class TextFormat(BaseModel):
    """The only form of answers."""

    type: Literal["text"]


class ChatRequest(BaseModel):
    """The body of a request; other fields have no effect, and a warning says so.

    Raises:
        pydantic.ValidationError: A field is wrong, or hopgate does not support its value.
    """

    model_config = ConfigDict(extra="allow")

    model: str
    messages: list[Json] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    reasoning_effort: str | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: Literal[1] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    response_format: TextFormat | None = None

    @property
    def sampling(self) -> Json:
        """The request's settings for the answer, by fields of `Context`."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        most = self.max_completion_tokens or self.max_tokens
        given = {name: getattr(self, name) for name in SAMPLING}
        given |= {"stop": tuple(stop or ()) or None, "max_answer_tokens": most}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def without_effect(self) -> list[str]:
        """The names of fields that hopgate does not use."""
        return sorted(name for name, value in (self.model_extra or {}).items() if value is not None)

    def history(self) -> list[BaseMessage]:
        """Return the messages, without the assistant's citation marks: they cite other passages.

        Raises:
            ValueError: One is not a message.
        """
        try:
            messages = convert_to_messages(self.messages)
        except Exception as error:  # of several kinds, over several lines
            cause = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(f"messages cannot be read: {cause}") from error
        return [
            AIMessage(keep_marks(each.text, ())) if isinstance(each, AIMessage) else each
            for each in messages
        ]


async def run(
    graph: AdaptiveGraph,
    messages: Sequence[BaseMessage],
    context: Context,
    user: object,
    thread: str | None = None,
) -> AsyncGenerator[Part, None]:
    """Run the graph, and yield the answer's tokens and each state; closing it ends the run.

    The run has a task of its own, because a server may read this from several.

    Args:
        graph: The graph.
        messages: The conversation, with the question last.
        context: The request's settings.
        user: The authenticated user, with an `identity`; None: there is none.
        thread: The thread to keep the run as, once it has ended, for a graph with a checkpointer.

    Raises:
        Exception: The graph's error.
    """
    parts: asyncio.Queue[Part | None] = asyncio.Queue()
    asked: Any = {"messages": list(messages)}
    config: Any = {"configurable": {"langgraph_auth_user": user} if user else {}}
    more: Any = {}
    if thread:
        config["configurable"]["thread_id"] = thread
        config["metadata"] = {OWNER: identity(user) or ""}  # LangGraph drops None
        more["durability"] = "exit"  # only the end is worth keeping

    async def fill() -> None:
        try:
            async for space, mode, part in graph.astream(
                asked,
                config,
                context=context,
                stream_mode=["custom", "messages", "values"],
                subgraphs=True,
                **more,
            ):
                event = events.read(mode, part)
                if event and event["event"] == "token":
                    parts.put_nowait(("token", event["text"]))
                elif event and event["event"] == "answering":
                    parts.put_nowait(("answering", event))
                elif mode == "values" and not space:
                    parts.put_nowait(("state", part))
        finally:
            parts.put_nowait(None)

    task = asyncio.create_task(fill())
    try:
        while part := await parts.get():
            yield part
        await task
    finally:
        task.cancel()


class ChatCompletion:
    """A completion in progress, to be sent as one document or in chunks."""

    def __init__(self, asked: ChatRequest) -> None:
        """Give it an id and a time."""
        self._asked = asked
        self.id = f"chatcmpl-{uuid4()}"
        self._head = {"id": self.id, "created": int(time.time())}

    async def document(self, parts: AsyncIterator[Part]) -> Json:
        """Return the whole completion."""
        state: Json = {}
        async for kind, part in parts:
            state = part if kind == "state" else state
        final = self._final(state)
        message = {
            "role": "assistant",
            "content": final["answer"],
            "refusal": None,
            "annotations": annotations(final["answer"], final["citations"]),
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(final)}
        return {
            **self._document("chat.completion", [choice]),
            "usage": _usage(final),
            "hopgate": _shown(final),
        }

    async def chunks(
        self, parts: AsyncGenerator[Part, None], live: bool
    ) -> AsyncGenerator[Json, None]:
        """Yield the chunks of the stream, without the final `[DONE]`; the first when it answers.

        Put together, their texts are the final answer: a token that the check of the answer may
        still change is held back, and so is everything after it.

        Args:
            parts: From `run`.
            live: Whether to send tokens before the answer is final; not if it may be withdrawn.
        """
        reply, sent, read, state, start = "", "", 0, Json(), Json()
        async with aclosing(parts):
            async for kind, part in parts:
                if kind == "state":
                    state = part
                elif kind == "answering":
                    if not start:
                        yield self._chunk({"role": "assistant", "content": ""})
                    reply, read, start = "", 0, part
                elif live:
                    reply += part
                    if len(reply) - read < len(reply) // PIECES:
                        continue
                    read = len(reply)
                    if more := _shown_so_far(reply, start)[len(sent) :]:
                        sent += more
                        yield self._chunk({"content": more})
        final = self._final(state)
        answer: str = final["answer"]
        rest = answer[len(sent) :] if answer.startswith(sent) else f"\n\n{answer}"
        rest = "" if sent.startswith(answer) else rest  # an endpoint that ignores max_tokens
        if rest:
            yield self._chunk({"content": rest})
        if noted := annotations(answer, final["citations"]):
            yield self._chunk({"annotations": noted})
        yield {**self._chunk({}, _finish(final)), "hopgate": _shown(final)}
        if self._counts:
            yield {**self._document("chat.completion.chunk", []), "usage": _usage(final)}

    @property
    def _counts(self) -> bool:
        options = self._asked.stream_options
        return bool(options and options.include_usage)

    def _chunk(self, delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._counts else {}
        return {**self._document("chat.completion.chunk", [choice]), **usage}

    def _document(self, kind: str, choices: list[Json]) -> Json:
        return {**self._head, "object": kind, "model": self._asked.model, "choices": choices}

    def _final(self, state: Json) -> Json:
        """Return the final state for this client: sources numbered from 1, and more warnings."""
        found: list[Citation] = state["citations"]
        citations = [
            {**each, "number": place} if "number" in each else each
            for place, each in enumerate(found, start=1)
        ]
        places = {each["number"]: n for n, each in enumerate(found, start=1) if "number" in each}
        decision = state["decision"]
        if names := self._asked.without_effect:
            unused = f"{', '.join(names)}: no effect in hopgate"
            decision = {**decision, "warnings": [*decision["warnings"], unused]}
        answer = _renumbered(state["answer"], places)
        return {**state, "answer": answer, "citations": citations, "decision": decision}


def _shown_so_far(reply: str, start: Json) -> str:
    """Return the part of a reply that a client may see so far, with its marks counted from 1."""
    if not start["full"]:
        return ""  # a short answer comes whole
    passages = start["passages"]
    text = settled(reply, passages, thoughts=start["thoughts"])
    if start["may_search"] and SEARCH.startswith(text[: len(SEARCH)].lower()):
        return ""
    if not passages:
        return text
    marks = [int(each) for mark in MARK.findall(CODE.sub("", text)) for each in mark.split(",")]
    return _renumbered(text, {each: at for at, each in enumerate(dict.fromkeys(marks), 1)})


def _finish(final: Json) -> str:
    return "length" if final["decision"].get("cut") else "stop"


def _renumbered(answer: str, places: Mapping[int, int]) -> str:
    """Return an answer whose marks count the cited passages, not all that were found."""

    def renumber(mark: re.Match[str]) -> str:
        numbers = [int(each) for each in mark[1].split(",")]
        if not places.keys() >= set(numbers):  # not a mark, but a bracket of the text
            return mark[0]
        space = mark[0][: mark[0].index("[")]
        return f"{space}[{', '.join(str(places[each]) for each in numbers)}]"

    return outside_code(lambda part: MARK.sub(renumber, part), answer)


def annotations(answer: str, citations: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Return citations as OpenAI's annotations of type `url_citation`.

    `answer[start_index:end_index]` is the citation's first mark, or the whole answer if it has
    none. `content` is the quote.
    """
    marks = {
        int(number): (mark.start() + mark[0].index("["), mark.end())
        for mark in reversed(list(MARK.finditer(answer)))
        for number in mark[1].split(",")
    }
    found = []
    for each in citations:
        start, end = marks.get(each.get("number", 0), (0, len(answer)))
        cited = {
            "url": _address(each),
            "title": each["title"],
            "content": each["quote"],
            "start_index": start,
            "end_index": end,
        }
        found.append({"type": "url_citation", "url_citation": cited})
    return found


def _address(citation: Mapping[str, Any]) -> str:
    """Return where a passage is: a web address, or a file's path with the page or the passage.

    Clients make links of it and tell sources apart by it. A path has no scheme, whatever the
    source claims to be.
    """
    source = citation.get("source", "")
    if source.lower().startswith(("http://", "https://")):
        return str(source)
    place = f"page={citation['page']}" if "page" in citation else citation["id"]
    path = quote(source).replace("//", "%2F/", 1) if source.startswith("//") else quote(source)
    return f"{path}#{quote(place, safe='=')}"


def _usage(final: Json) -> Json:
    prompt, completion = final["usage"]["prompt_tokens"], final["usage"]["completion_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _shown(final: Json) -> Json:
    return {key: final[key] for key in SHOWN}
