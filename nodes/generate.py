"""Generate: the answer, directly or over the evidence, with checked citations."""

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Literal, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from hopgate.common.strategies import Strategy
from hopgate.common.words import sentences
from hopgate.models.chat import ChatModel, Completion, Layout
from hopgate.nodes import prompts
from hopgate.nodes.events import AnswerEvent
from hopgate.nodes.named import RETRIEVER_FAILED
from hopgate.nodes.runtime import NodeRuntime, with_warning
from hopgate.nodes.state import Citation, Decision, State, Update, Usage
from hopgate.nodes.support import Support, support
from hopgate.nodes.text import MARK, inert, keep_marks
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

MAX_TOKENS = 100  # RetrievalQA, appendix A.4
UNKNOWN = "I don't know"
MIN_SUPPORT = 0.5  # share of the answer's words that a passage must hold to count as its source
MAX_QUOTE_LINES = 4
MAX_QUOTE_CHARS = 500

_UNKNOWN = re.compile(
    r"^\W*i (do not|don['’]?t) know\b(?!.*\b(but|however|though)\b)", re.IGNORECASE | re.DOTALL
)
# Without passages, a bracket inside the answer belongs to it: `a[1]`.
_TRAILING = re.compile(
    r"(?<!\s\[\d\])(?<!\s\[\d\d\])(?<!\s\[\d{3}\])"  # try a row of markers as a whole
    r"(?<!\s)((?:\s++\[\d{1,3}\])++)\W*+$"
)
_PREFIX = re.compile(r"^\s*answer\s*:\s*", re.IGNORECASE)


_MAY_BE_UNKNOWN = re.compile(r"\W*(i(\s(d(o.*)?)?)?)?", re.IGNORECASE | re.DOTALL)


class Answer(NamedTuple):
    """An answer with its citations and any warnings about them."""

    text: str
    known: bool
    citations: list[Citation]
    warnings: list[str]

    @property
    def doubt(self) -> str | None:
        """Why the answer may not be good enough: it is unknown, or a citation does not hold."""
        if self.warnings:
            return self.warnings[0]
        return None if self.known else "the model does not know the answer"


async def generate(state: State, runtime: NodeRuntime) -> Update:
    """Answer, over the evidence if there is any, and check the citations."""
    model = await runtime.model()
    answer, message_id = await _answer(state, runtime)
    runtime.send(AnswerEvent(event="answer", text=answer.text, citations=answer.citations))
    strategy = state["decision"].get("strategy", "none")  # a person may have edited the gate
    deeper = _deeper(strategy, state, answer, runtime)
    # `doubt` says why an answer is withdrawn; warnings about it would outlive it.
    warnings = [] if deeper else _warnings(state, answer, model)
    return {
        "answer": answer.text,
        "citations": answer.citations,
        "messages": [_message(answer, message_id, runtime.spending.total())],
        "decision": Decision(
            strategy=strategy,
            model=model.name,
            answered=answer.known,
            doubt=answer.doubt,
            escalate_to=deeper,
            **with_warning(state, *warnings),
        ),
    }


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


def _warnings(state: State, answer: Answer, model: ChatModel) -> list[str]:
    warnings = answer.warnings.copy()
    failed = any(RETRIEVER_FAILED in each for each in state["decision"].get("warnings", []))
    if state["hops"] and not state["evidence"] and not failed:
        warnings.insert(0, "nothing was found; answered without sources")
    if model.tiny:
        warnings.append(f"{model.name} is a tiny model: its answers are often wrong")
    return warnings


async def _answer(state: State, runtime: NodeRuntime) -> tuple[Answer, str | None]:
    """Return the answer and its message's id; reuse the gate's draft for this question.

    The draft was written without instructions, which are no part of the gate's verdict.
    """
    question, evidence = state["standalone"], state["evidence"]
    draft = state.get("draft")
    system = _system_text(runtime.resources.instructions, state["messages"])
    if draft and draft["question"] == question and not evidence and not system:
        return read_answer(draft["text"], [], question), None
    shown = prompts.fit(evidence, (await runtime.model()).evidence_chars)
    completion = await prompt_answer(question, shown, runtime, system=system)
    return read_answer(completion.text, shown, question), completion.id


def _system_text(instructions: str, messages: Sequence["BaseMessage"]) -> str:
    """Return the app's instructions and the conversation's system messages, each text once.

    Clients may repeat their system messages each turn.
    """
    texts = [inert(message.text).strip() for message in messages if message.type == "system"]
    return "\n\n".join(dict.fromkeys(filter(None, [instructions.strip(), *texts])))


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


async def prompt_answer(
    question: str,
    shown: Sequence[Hit],
    runtime: NodeRuntime,
    *,
    logprobs: bool = False,
    streamed: bool = True,
    system: str = "",
) -> Completion:
    """Ask the model for an answer, over passages if there are any (RetrievalQA, figures 7 and 8).

    Raises:
        ModelError: No answer from the model.
    """
    layout = (await runtime.model()).layout
    return await runtime.complete(
        _prompt(question, shown, layout, system),
        max_tokens=MAX_TOKENS,
        stop=["\n"] if layout == "turns" else None,
        logprobs=logprobs,
        streamed=streamed,
    )


def _prompt(
    question: str, shown: Sequence[Hit], layout: Layout, system: str
) -> list["BaseMessage"]:
    if shown:
        request = prompts.grounded(layout, shown, question)
        instruction, demos = prompts.GROUNDED, prompts.GROUNDED_DEMOS
        if layout == "inline":
            instruction += prompts.CITE
    else:
        request = inert(question)
        if layout == "inline":
            request = f"Question: {request}"
        instruction, demos = prompts.DIRECT, prompts.DIRECT_DEMOS
    return prompts.render(layout, instruction, request, demos, system=system)


def read_answer(reply: str, evidence: Sequence[Hit], question: str = "") -> Answer:
    """Read an answer from a reply and check its citations against the evidence.

    A mark such as `[2]` stays in the answer, and must name a passage that was shown; otherwise it
    is dropped with a warning. A reply without marks is traced to the passages that hold its words,
    leaving out those of the question.
    """
    if not evidence:
        text = _PREFIX.sub("", _TRAILING.sub("", reply)).strip()
        _, warnings = _markers("".join(_TRAILING.findall(reply)), 0)
        return _unknown(text) or Answer(text, True, [], warnings)
    plain = _PREFIX.sub("", MARK.sub("", reply)).strip()
    if unknown := _unknown(plain):
        return unknown
    found = support(plain, question, [_full_text(hit) for hit in evidence])
    cited, warnings = _markers(reply, len(evidence))
    numbers = [i + 1 for i in cited]
    text = _PREFIX.sub("", keep_marks(reply, numbers)).strip()
    for i in cited:
        if found.words and not found.share(_full_text(evidence[i])):
            warnings.append(f"[{i + 1}] does not support the answer that cites it")
    cited = cited or _trace(found, evidence)
    if not cited:
        warnings.append("no retrieved passage supports the answer")
    citations = [_cite(evidence[i], found) for i in cited]
    for number, citation in zip(numbers, citations, strict=False):  # none if the marks are missing
        citation["number"] = number
    return Answer(text, True, citations, warnings)


def settled(reply: str) -> str:
    """Return the part of a reply so far that `read_answer` will not change.

    The rest may be a mark, a reasoning model's thoughts, or the start of "I don't know".
    """
    text = _PREFIX.sub("", re.split(r"[\[<]", reply, maxsplit=1)[0].strip())
    is_label = "answer".startswith(text.lower())
    return "" if is_label or _MAY_BE_UNKNOWN.fullmatch(text) else text


def _unknown(text: str) -> Answer | None:
    if not text:
        return Answer(UNKNOWN, False, [], ["the model gave an empty answer"])
    return Answer(UNKNOWN, False, [], []) if _UNKNOWN.search(text) else None


def _markers(reply: str, shown: int) -> tuple[list[int], list[str]]:
    """Return the positions of the cited passages, and warnings about bad markers."""
    cited: list[int] = []
    warnings: list[str] = []
    for number in (number for group in MARK.findall(reply) for number in group.split(",")):
        position = int(number) - 1
        if not 0 <= position < shown:
            warnings.append(f"the model cited [{number.strip()}], which was not retrieved")
        elif position not in cited:
            cited.append(position)
    return cited, list(dict.fromkeys(warnings))


def _trace(found: Support, evidence: Sequence[Hit]) -> list[int]:
    shares = [found.share(_full_text(hit)) for hit in evidence]
    best = max(shares, default=0.0)
    return [i for i, each in enumerate(shares) if each == best][:2] if best >= MIN_SUPPORT else []


def _full_text(hit: Hit) -> str:
    return f"{hit['title']} {hit['text']}"


def _quote(text: str, found: Support) -> str:
    """Return the sentence that supports the answer best, or the best lines of a long one."""

    def support_of(piece: str) -> tuple[float, float]:
        return found.numbers_share(piece), found.share(piece)

    best = max(sentences(text, found.language), key=support_of, default="")
    lines = best.splitlines()
    if len(lines) > MAX_QUOTE_LINES:  # code, or a table
        starts = range(len(lines) - MAX_QUOTE_LINES + 1)
        pieces = ("\n".join(lines[start : start + MAX_QUOTE_LINES]) for start in starts)
        best = max(pieces, key=support_of)
    return best[:MAX_QUOTE_CHARS].strip()


def _cite(hit: Hit, found: Support) -> Citation:
    quote = _quote(hit["text"], found)
    citation = Citation(id=hit["id"], title=hit["title"], quote=quote)
    if "source" in hit:
        citation["source"] = hit["source"]
    if "page" in hit:
        citation["page"] = hit["page"]
    if "section" in hit:
        citation["section"] = hit["section"]
    return citation
