"""Gate: does this question need outside knowledge at all?

TA-ARE and vanilla prompting follow RetrievalQA (sections 3 and 4). `confidence` reads the
probability of Yes from the log-probabilities of the same reply. `draft` answers directly first
and looks at how sure the model was of its words.
"""

import asyncio
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hopgate.classifiers.decision import choose
from hopgate.models.chat import (
    TOP_LOGPROBS,
    WITHOUT_LOGPROBS,
    ChatModel,
    Completion,
    Layout,
    ModelError,
)
from hopgate.nodes.answers import full
from hopgate.nodes.answers.reading import read_answer
from hopgate.nodes.answers.short import prompt_answer
from hopgate.nodes.prompts import demonstrations
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.prompts.own import fill
from hopgate.nodes.prompts.templates import Demo
from hopgate.nodes.route import guess
from hopgate.nodes.run.context import FIXED, Context
from hopgate.nodes.run.events import AnsweringEvent, GateEvent
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import (
    Decision,
    DirectAnswer,
    GateAnswer,
    GateDecision,
    Looked,
    State,
    Update,
)
from hopgate.nodes.texts.text import as_data

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

PromptedMode = Literal["ta-are", "vanilla", "confidence"]

DEMOS = 4  # RetrievalQA, figure 4: the best number
MAX_TOKENS = 100  # RetrievalQA, appendix A.4
CONFIDENCE_TOKENS = 4  # "[", "Yes", "]" and one to spare
MIN_MASS = 0.05  # of Yes and No together, for a position to count as the verdict

# "[Yes] or [No]", "yes/no": repeats the choice and decides nothing.
_CHOICE = re.compile(
    r"\b(?:yes|no)\b(?:\W*+(?:or|and)\b|[^\w/|]*+[/|])\W*+(?:yes|no)\b(?!\s+\w)", re.IGNORECASE
)
# "No idea" is not a verdict, and "No one" answers the question itself.
_LEADING = re.compile(
    r"^[\W\d_]*(?:answer[\W_]+)?(yes|no)(?![^\W_])"
    r"(?!\s+(?:answer|clue|data|idea|information|longer|one)\b)",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"[\[{]\s*(yes|no)\s*[\]}]", re.IGNORECASE)
# "the answer is no", "I would say yes", "Decision: No", {"retrieve": "yes"}
_STATED = re.compile(
    r"(?:\b(?:answer(?:\s+is)?|say)[^\w.!?]+(yes|no)\b(?!\W+(?:or|and)\b)"
    r"|[:=][^\w:=]*+(yes|no)\b(?!\s+\w))",
    re.IGNORECASE,
)
# a last sentence of its own, but not the answer to a question in the reply
_CLOSING = re.compile(
    r"(?:[.!;\n—–]|\b(?:hence|so|therefore|thus)\b)[^\w?.!;\n—–]*+(yes|no)\W*+\Z", re.IGNORECASE
)


COVERED = (0.925, 0.85)
"""At α = 0 and at α = 1: a collection plainly covers what scores above this share of unrelated
questions. Chosen on three collections, as the next: outcomes do not tell (docs/results/pays.md)."""
NOT_COVERED = (0.8, 0.5)
"""Likewise: it plainly does not cover what scores above less than this share of them."""


async def gate(state: State, runtime: NodeRuntime) -> Update:
    """Decide whether the question needs outside knowledge; a No leads straight to the answer."""
    question = state["standalone"]
    looked, found = None, _needs_no_search(state, runtime.context)
    if found is None and is_open(runtime.context):
        looked = await runtime.look(question)
        found = await _without_asking(looked, question, runtime)
    draft: DirectAnswer | None = None
    if found is None and runtime.context.gate == "reply" and runtime.context.strategy == "auto":
        found, draft = await _reply(state, runtime)
    found = found or await decide(question, runtime)
    found["coverage"] = looked["coverage"] if looked else None
    runtime.send(GateEvent(event="gate", **found))
    update: Update = {"decision": Decision(gate=found)}
    if looked and found["retrieve"]:
        update["looked"] = looked
    if found["answer"] != "skipped" and not found["retrieve"]:
        update["decision"]["strategy"] = "none"
    if found["mode"] == "draft" and found["reply"]:
        draft = DirectAnswer(question=question, text=found["reply"])
    update["draft"] = draft
    return update


async def decide(question: str, runtime: NodeRuntime) -> GateDecision:
    """Decide whether a question needs outside knowledge, with at most one call to the model.

    Args:
        question: The standalone question.
        runtime: The request's settings and model.

    Raises:
        ModelError: The model did not answer, or gave no log-probabilities although the mode needs
            them.
        ValueError: The pool of demonstrations cannot be used.
    """
    if fixed := _without_model(runtime.context):
        return fixed
    model = await runtime.model()
    mode = model.gate if runtime.context.gate == "auto" else runtime.context.gate
    if mode == "draft":
        return await _draft(question, model, runtime)
    if mode == "confidence":
        return await _confidence(question, model, runtime)
    return await _prompted(question, "vanilla" if mode == "vanilla" else "ta-are", model, runtime)


def _needs_no_search(state: State, context: Context) -> GateDecision | None:
    """Return a No for a message that asks for no facts, if the request leaves it open.

    A chat client's own task is never searched for.
    """
    message = state["decision"].get("message")
    if not message or message["kind"] == "question":
        return None
    if not is_open(context) and message["kind"] != "client_task":
        return None
    return _decision(message["source"], "no", message["reason"])


def is_open(context: Context) -> bool:
    """Return whether the request leaves it open how to decide."""
    return context.gate == "auto" and context.strategy == "auto"


async def _without_asking(
    looked: Looked | None, question: str, runtime: NodeRuntime
) -> GateDecision | None:
    """Decide without a call to the model, where the collection or the router is plain.

    A question that the collection plainly covers is searched, whatever the model believes; one it
    plainly does not cover is not. In between, the router may know that no search is needed. α says
    how plainly: with a higher one more is searched, and more is asked.
    """
    if looked is None or looked["coverage"] is None:
        return None
    alpha, share = await runtime.alpha(), looked["coverage"]["share"]
    least, most = ((1 - alpha) * low + alpha * high for low, high in (COVERED, NOT_COVERED))
    shown = f"it scores above {share:.0%} of unrelated questions"
    if share >= least:
        reason = f"the collection covers it: {shown}, at least {least:.0%}"
        return _decision("coverage", "yes", reason)
    routed = await runtime.route(question)
    if share < most and not routed.doubt:
        reason = f"the collection does not cover it: {shown}, below {most:.0%}"
        return _decision("coverage", "no", reason)
    label, reason = choose(routed.probs, alpha, routed.doubt)
    if label != "A" or await guess(routed.profile, runtime):  # another LLM's knowledge
        return None
    reason += f", and the collection hardly covers it: {shown}"
    return _decision("router", "no", reason)


def _without_model(context: Context) -> GateDecision | None:
    if context.strategy != "auto":
        reason, wanted = (
            f"the request sets strategy {context.strategy!r}",
            context.strategy != "none",
        )
        return {**_decision(context.gate, "skipped", reason), "retrieve": wanted}
    if context.gate == "off":
        return _decision("off", "skipped", "no gate: the router decides alone")
    if context.gate in ("always", "never"):
        answer = _yes_or_no(context.gate == "always")
        return _decision(context.gate, answer, f"the request sets gate {context.gate!r}")
    return None


def _decision(mode: str, answer: GateAnswer, reason: str, reply: str = "") -> GateDecision:
    """Return a decision without figures; anything but a No retrieves."""
    return GateDecision(
        mode=mode,
        answer=answer,
        retrieve=answer != "no",
        p_yes=None,
        uncertainty=None,
        threshold=None,
        reply=reply,
        reason=reason,
    )


# Prompting for Yes or No


async def _prompted(
    question: str, mode: Literal["ta-are", "vanilla"], model: ChatModel, runtime: NodeRuntime
) -> GateDecision:
    messages = await _prompt(question, mode, model.layout, runtime)
    completion = await runtime.complete(messages, max_tokens=MAX_TOKENS)
    return _judged(mode, completion.text, read_verdict(completion.text), runtime.context)


async def _confidence(question: str, model: ChatModel, runtime: NodeRuntime) -> GateDecision:
    messages = await _prompt(question, "confidence", model.layout, runtime)
    completion = await runtime.complete(messages, max_tokens=CONFIDENCE_TOKENS, logprobs=True)
    if not completion.logprobs:
        raise _no_logprobs("confidence", model)
    threshold = _threshold(runtime.context, model.gate_threshold)
    p_yes = probability_of_yes(completion)
    if p_yes is None:
        decision = _judged("confidence", completion.text, "invalid", runtime.context)
    else:
        reason = _comparison("P(Yes)", p_yes, threshold)
        decision = _decision("confidence", _yes_or_no(p_yes >= threshold), reason, completion.text)
    return {**decision, "p_yes": p_yes, "threshold": threshold}


def _judged(mode: str, reply: str, answer: GateAnswer, context: Context) -> GateDecision:
    if answer == "invalid":
        retrieve = context.gate_invalid == "retrieve"
        act = "retrieving" if retrieve else "not retrieving"
        decision = _decision(mode, answer, f"the reply is neither Yes nor No, so {act}", reply)
        return {**decision, "retrieve": retrieve}
    needs = "needs" if answer == "yes" else "does not need"
    return _decision(mode, answer, f"the model says that it {needs} outside knowledge", reply)


async def _prompt(
    question: str, mode: PromptedMode, layout: Layout, runtime: NodeRuntime
) -> list["BaseMessage"]:
    if own := runtime.resources.prompts.get("gate"):
        return fill(own, question=as_data(question), today=runtime.today().isoformat())
    instruction, demos = prompts.VANILLA, tuple[Demo, ...]()
    if mode != "vanilla":
        demos = await _demos(question, mode, layout, runtime.context)
        if runtime.context.gate_date:
            instruction = prompts.TA_ARE.format(today=runtime.today().isoformat())
    request = prompts.asked(layout, as_data(question))
    return prompts.render(layout, instruction, request, demos, examples_in_inline=True)


async def _demos(
    question: str, mode: PromptedMode, layout: Layout, context: Context
) -> tuple[Demo, ...]:
    count = context.gate_demos
    if count is None:
        more = mode == "confidence" and layout == "turns"
        count = len(prompts.CONFIDENCE_DEMOS) if more else DEMOS
    if context.demos == FIXED or not count:
        return demonstrations.fixed(count)

    def pick() -> tuple[Demo, ...]:
        return demonstrations.load_pool(Path(context.demos)).pick(question, count)

    return await asyncio.to_thread(pick)


def read_verdict(reply: str) -> Literal["yes", "no", "invalid"]:
    """Read Yes, No or neither from a model's reply.

    The first word decides; then a single bracketed verdict; then "answer is …" or a label such as
    "Decision: …"; then a last sentence that is nothing but the verdict. The choice itself,
    "[Yes] or [No]", counts as neither, and so does every word but Yes and No, in any language:
    the prompt asks for these two.
    """
    reply = _CHOICE.sub(" ", reply)
    if match := _LEADING.search(reply):
        return _yes_or_no(match[1].lower() == "yes")
    contradicted = False
    for pattern in (_BRACKETED, _STATED):
        found = {"".join(match.groups("")).lower() for match in pattern.finditer(reply)}
        if len(found) == 1:
            return _yes_or_no(found == {"yes"})
        contradicted |= bool(found)
    closing = None if contradicted else _CLOSING.search(reply)
    return _yes_or_no(closing[1].lower() == "yes") if closing else "invalid"


def _yes_or_no(yes: bool) -> Literal["yes", "no"]:
    return "yes" if yes else "no"


def probability_of_yes(completion: Completion) -> float | None:
    """Return P(Yes) / (P(Yes) + P(No)) at the reply's first Yes/No token, None if there is none."""
    for position in completion.logprobs:
        mass = {"yes": 0.0, "no": 0.0}
        for token, logprob in position.items():
            word = token.strip(' \n"*[].,!').lower()
            if word in mass:
                mass[word] += math.exp(logprob)
        total = mass["yes"] + mass["no"]
        if total >= MIN_MASS:
            return mass["yes"] / total
    return None


# Answering directly first


async def _reply(state: State, runtime: NodeRuntime) -> tuple[GateDecision, DirectAnswer | None]:
    """Let the model reply to the message, or ask for a search, in one call."""
    model = await runtime.model()
    thoughts = model.learned.unseen
    runtime.send(
        AnsweringEvent(event="answering", passages=0, full=True, thoughts=thoughts, may_search=True)
    )
    completion, notes = await full.reply(state, [], runtime, may_search=True)
    if completion.text.lower().startswith(prompts.SEARCH):
        return _decision("reply", "yes", "the model asks for a search"), None
    draft = DirectAnswer(
        question=state["standalone"],
        text=completion.text,
        full=True,
        id=completion.id,
        cut=completion.cut,
        warnings=notes,
    )
    return _decision("reply", "no", "the model replied without a search"), draft


async def _draft(question: str, model: ChatModel, runtime: NodeRuntime) -> GateDecision:
    """Answer directly, and retrieve if the answer is unsure; `reply` is that answer.

    Tokens are kept out of the stream, since the draft may not become the answer. No answer and
    "I don't know" count as fully uncertain.
    """
    completion = await prompt_answer(question, [], runtime, logprobs=True, streamed=False)
    if completion.text and not completion.logprobs:
        raise _no_logprobs("draft", model)
    threshold = _threshold(runtime.context, model.draft_threshold)
    if read_answer(completion.text, []).known:
        unsure = uncertainty(completion)
        reason = _comparison("uncertainty of the direct answer", unsure, threshold)
    else:
        unsure, reason = 1.0, "the model does not know the answer"
    decision = _decision("draft", _yes_or_no(unsure >= threshold), reason, completion.text)
    return {**decision, "uncertainty": unsure, "threshold": threshold}


def uncertainty(completion: Completion) -> float:
    """Return how unsure the model was at its least sure token, 0 to 1.

    That is the entropy over a position's likeliest tokens, renormalised, as a share of the entropy
    of `TOP_LOGPROBS` equally likely tokens; the maximum over the answer. It separates right from
    wrong answers best (docs/results/gate.md).
    """
    return min(1.0, max(map(_entropy, completion.logprobs)) / math.log(TOP_LOGPROBS))


def _entropy(position: dict[str, float]) -> float:
    """Return the entropy of a position's tokens, in nats."""
    masses = [math.exp(logprob) for logprob in position.values()]
    shares = [mass / sum(masses) for mass in masses if mass]
    return -sum(share * math.log(share) for share in shares if share)


def _threshold(context: Context, default: float) -> float:
    return default if context.gate_threshold is None else context.gate_threshold


def _comparison(name: str, value: float, threshold: float) -> str:
    return f"{name} = {value:.3f} {'≥' if value >= threshold else '<'} {threshold}"


def _no_logprobs(mode: str, model: ChatModel) -> ModelError:
    return ModelError(
        f"gate {mode!r} needs log-probabilities, which model {model.name} at {model.endpoint} "
        f"does not return; {WITHOUT_LOGPROBS}"
    )
