"""Generate: the answer, directly or over the evidence, with checked citations."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Literal, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from hopgate.common.strategies import Strategy
from hopgate.models.chat import ChatModel
from hopgate.nodes.answers import full
from hopgate.nodes.answers.reading import Answer, read_answer, read_full_answer
from hopgate.nodes.answers.short import prompt_answer
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.run.conversation import earlier, system_text
from hopgate.nodes.run.events import AnswerEvent, AnsweringEvent
from hopgate.nodes.run.resources import RETRIEVER_FAILED
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import Decision, State, Update, Usage, with_warning
from hopgate.nodes.texts.message import QUERY_CHARS, kind_of
from hopgate.retrievers.base import Hit


class Written(NamedTuple):
    """An answer as it was written.

    Attributes:
        answer: The answer, read.
        id: Its message's id; None if no call wrote it.
        warnings: Warnings about the call that wrote it.
        cut: Whether it ended at its maximum length.
    """

    answer: Answer
    id: str | None = None
    warnings: Sequence[str] = ()
    cut: bool = False


async def generate(state: State, runtime: NodeRuntime) -> Update:
    """Answer, over the evidence if there is any, and check the citations."""
    model = await runtime.model()
    short = is_short(state, model, runtime)
    shown = prompts.fit(state["evidence"], model.evidence_chars)
    runtime.send(
        AnsweringEvent(
            event="answering",
            passages=len(shown),
            full=not short,
            thoughts=model.learned.unseen,
            may_search=False,
        )
    )
    written = _draft(state, runtime) or await (_short if short else _full)(state, shown, runtime)
    answer = written.answer
    runtime.send(AnswerEvent(event="answer", text=answer.text, citations=answer.citations))
    strategy = state["decision"].get("strategy", "none")  # a person may have edited the gate
    deeper = _deeper(strategy, state, answer, runtime)
    # `doubt` says why an answer is withdrawn; warnings about it would outlive it.
    warnings = [] if deeper else _warnings(state, written, model)
    return {
        "answer": answer.text,
        "citations": answer.citations,
        "messages": [_message(answer, written.id, runtime.total())],
        "decision": Decision(
            strategy=strategy,
            model=model.name,
            answered=answer.known,
            cut=written.cut,
            doubt=answer.doubt,
            escalate_to=deeper,
            **with_warning(state, *warnings),
        ),
    }


def is_short(state: State, model: ChatModel, runtime: NodeRuntime) -> bool:
    """Return whether the answer is a short one, as the request says.

    By default it is one if a tiny model answers a question: the papers' way suits it best.
    A chat client's task has a form of its own.
    """
    kind = kind_of(state["decision"])
    if kind == "client_task":
        return False
    if runtime.context.answers != "auto":
        return runtime.context.answers == "short"
    return model.tiny and kind == "question" and len(state["original_question"]) <= QUERY_CHARS


def _message(answer: Answer, message_id: str | None, usage: Usage) -> AIMessage:
    """Return the answer as chat clients read it, with its citations and the turn's usage."""
    tokens = usage["prompt_tokens"], usage["completion_tokens"]
    counted = UsageMetadata(
        input_tokens=tokens[0], output_tokens=tokens[1], total_tokens=sum(tokens)
    )
    return AIMessage(
        answer.text,
        id=message_id or str(uuid4()),  # a stream shows it, so clients can name it in feedback
        additional_kwargs={"citations": deepcopy(answer.citations)},
        usage_metadata=counted if any(tokens) else None,
    )


def _warnings(state: State, written: Written, model: ChatModel) -> list[str]:
    warnings = [*written.answer.warnings, *written.warnings]
    failed = any(RETRIEVER_FAILED in each for each in state["decision"].get("warnings", []))
    if state["hops"] and not state["evidence"] and not failed:
        warnings.insert(0, "nothing was found; answered without sources")
    if model.tiny:
        warnings.append(f"{model.name} is a tiny model: its answers are often wrong")
    return warnings


def _draft(state: State, runtime: NodeRuntime) -> Written | None:
    """Return the gate's draft if it answers this question, so that its call was not for nothing.

    A short one was written without instructions, which are not part of the gate's verdict.
    """
    draft, question = state.get("draft"), state["standalone"]
    if not draft or draft["question"] != question or state["evidence"]:
        return None
    if draft.get("full"):
        answer = read_full_answer(draft["text"], [])
        return Written(answer, draft.get("id"), draft.get("warnings", ()), draft.get("cut", False))
    if system_text(state["messages"], runtime.resources.instructions):
        return None
    return Written(read_answer(draft["text"], [], question))


async def _short(state: State, shown: Sequence[Hit], runtime: NodeRuntime) -> Written:
    """Answer as the papers do."""
    question = state["standalone"]
    system = system_text(state["messages"], runtime.resources.instructions)
    completion = await prompt_answer(
        question, shown, runtime, system=system, **full.wanted(runtime.context)
    )
    answer = read_answer(completion.text, shown, question)
    return Written(answer, completion.id, full.notes_of(completion, "answers=full"), completion.cut)


async def _full(state: State, shown: Sequence[Hit], runtime: NodeRuntime) -> Written:
    """Answer the whole message, in its conversation."""
    completion, notes = await full.reply(state, shown, runtime)
    said = "\n".join(each.text for each in earlier(state["messages"], state["message_id"]))
    answer = read_full_answer(completion.text, shown, state["original_question"], said)
    return Written(answer, completion.id, notes, completion.cut)


def _deeper(
    strategy: Strategy, state: State, answer: Answer, runtime: NodeRuntime
) -> Literal["single", "multi"] | None:
    """Return the next deeper strategy if the answer is in doubt and the request allows it.

    A path that the request itself chose is final, a search that found nothing is not repeated,
    and with too little time or budget left the answer stands.
    """
    context = runtime.context
    forced = context.strategy != "auto" or context.gate == "never"
    found_nothing = bool(state["hops"]) and not state["evidence"]
    exhausted = state["usage"]["retrieval_steps"] >= context.escalate
    if not answer.doubt or forced or found_nothing or exhausted or strategy == "multi":
        return None
    if not runtime.affords_another():
        return None
    return "single" if strategy == "none" else "multi"
