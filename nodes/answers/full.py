"""Full answers: to the whole message, in its conversation, as long as they need to be."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopgate.models.chat import SAMPLING, ChatModel, Completion
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.prompts.own import AnswerPrompt, fill
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.conversation import (
    attachments,
    earlier,
    message_tokens,
    system_text,
    trimmed,
)
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import State
from hopgate.nodes.texts.message import kind_of
from hopgate.nodes.texts.text import inert
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage


async def reply(
    state: State,
    shown: Sequence[Hit],
    runtime: NodeRuntime,
    *,
    may_search: bool = False,
) -> tuple[Completion, list[str]]:
    """Ask the model to reply to the message, over passages if there are any.

    A model that reads no images gets the text alone.

    Args:
        state: The turn.
        shown: The passages.
        runtime: The request's settings and model.
        may_search: Whether the model may ask for a search instead (`prompts.SEARCH`).

    Returns:
        The reply, and warnings: parts that the model could not read, and those of `notes_of`.

    Raises:
        ModelError: No answer from the model.
    """
    model = await runtime.model()
    messages, dropped = _prompt(state, shown, runtime, model, may_search)
    limit = await runtime.answer_tokens(messages)
    completion = await runtime.complete(messages, max_tokens=limit, **wanted(runtime.context))
    return completion, [*dropped, *notes_of(completion, "a higher max_answer_tokens")]


def _prompt(
    state: State,
    shown: Sequence[Hit],
    runtime: NodeRuntime,
    model: ChatModel,
    may_search: bool,
) -> tuple[list["BaseMessage"], list[str]]:
    """Return the prompt: instructions, as much of the conversation as fits, passages, message."""
    from langchain_core.messages import HumanMessage, SystemMessage, merge_message_runs

    resources, text = runtime.resources, inert(state["original_question"])
    said = earlier(state["messages"], state["message_id"])
    message = next((each for each in state["messages"] if each.id == state["message_id"]), None)
    parts = attachments(message) if message else []
    warnings = []
    if model.text_only and (parts or any(map(attachments, said))):
        said, parts = [each.model_copy(update={"content": each.text}) for each in said], []
        warnings = [f"{model.name} reads no images or files: it got the text alone"]

    def prompt(history: Sequence["BaseMessage"]) -> list["BaseMessage"]:
        if kind_of(state["decision"]) == "client_task":
            system = system_text(state["messages"])
            whole = [*([SystemMessage(system)] if system else []), *history, HumanMessage(text)]
        else:
            fields = {"question": text, "history": list(history)}
            system = system_text(state["messages"], resources.instructions)
            more = prompts.MAY_SEARCH if may_search else ""
            fields["instructions"] = f"{system}\n\n{more}".strip()
            if shown:
                fields["passages"] = prompts.paragraphs("inline", shown)
            name: AnswerPrompt = "answer_with_passages" if shown else "answer"
            whole = fill(resources.prompts.get(name) or prompts.full(name), **fields)
        return _with_parts(whole, parts)

    needed, room = sum(map(message_tokens, prompt([]))), model.prompt_tokens
    history = trimmed(said, max(0, room - needed))
    return merge_message_runs(prompt(history)), warnings


def _with_parts(messages: list["BaseMessage"], parts: Sequence[Any]) -> list["BaseMessage"]:
    """Return messages whose last one also has these parts, after its text."""
    if not parts:
        return messages
    *others, last = messages
    text = [{"type": "text", "text": last.text}] if last.text else []
    return [*others, last.model_copy(update={"content": [*text, *parts]})]


def wanted(context: Context) -> dict[str, Any]:
    """Return the request's settings of sampling, as options of `complete`."""
    given = {name: getattr(context, name) for name in SAMPLING}
    sampling = {name: value for name, value in given.items() if value is not None}
    return {"sampling": sampling, "stop": context.stop, "streamed": True}


def notes_of(completion: Completion, remedy: str) -> list[str]:
    """Return notes for the user: settings that the model did not take, and whether it was cut."""
    notes = []
    if completion.left_out:
        names = ", ".join(completion.left_out)
        notes.append(f"the model does not take {names}: left out")
    if completion.cut:
        notes.append(f"the answer was cut at its maximum length; use {remedy}, or ask to continue")
    return notes
