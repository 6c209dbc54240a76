"""The gate: does this question need outside knowledge at all?

TA-ARE and vanilla prompting follow RetrievalQA (sections 3 and 4); `confidence` reads
the probability of Yes from the log-probabilities of the same answer; `draft` answers
directly first and looks how sure the model was of its words.
"""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from typing_extensions import TypedDict

from hopgate.models.chat import (
    TOP_LOGPROBS,
    WITHOUT_LOGPROBS,
    ChatModel,
    Completion,
    Layout,
    ModelError,
    complete,
)
from hopgate.nodes import generate, prompts
from hopgate.nodes.prompts import Demo

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

Verdict = Literal["yes", "no", "invalid", "skipped"]
AskedMode = Literal["ta-are", "vanilla", "confidence"]

MAX_TOKENS = 100  # RetrievalQA, appendix A.4
CONFIDENCE_TOKENS = 4  # "[", "Yes", "]" and one to spare
MIN_MASS = 0.05  # of Yes and No together, for a position to count as the answer

# "[Yes] or [No]", "yes/no": the choice repeated, which decides nothing.
_CHOICE = re.compile(
    r"\b(?:yes|no)\b\W*(?:\bor\b|\band\b|/|\|)\W*\b(?:yes|no)\b(?!\s+\w)", re.IGNORECASE
)
# "No idea" is no verdict, and "No one" answers the question itself.
_LEADING = re.compile(
    r"^[\W\d_]*(?:answer[\W_]+)?(yes|no)(?![^\W_])"
    r"(?!\s+(?:answer|clue|data|idea|information|longer|one)\b)",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"[\[{]\s*(yes|no)\s*[\]}]", re.IGNORECASE)
# "the answer is no", "I would say yes", "Decision: No", {"retrieve": "yes"}
_STATED = re.compile(
    r"(?:\b(?:answer(?:\s+is)?|say)[^\w.!?]+(yes|no)\b(?!\W+(?:or|and)\b)"
    r"|[:=]\W*(yes|no)\b(?!\s+\w))",
    re.IGNORECASE,
)
# a last sentence of its own, but not the answer to a question that the reply asks
_CLOSING = re.compile(
    r"(?:[.!;\n—–]|\b(?:hence|so|therefore|thus)\b)[^\w?]*(yes|no)\W*\Z", re.IGNORECASE
)


class GateDecision(TypedDict):
    """What the gate said, and why; plain values for the state."""

    mode: str
    answer: Verdict
    retrieve: bool
    p_yes: float | None
    uncertainty: float | None
    threshold: float | None
    reply: str
    reason: str


def parse(reply: str) -> Literal["yes", "no", "invalid"]:
    """Read Yes, No or neither from a model's reply.

    The first word decides; else the one bracketed verdict; else "answer is …" or a label such as
    "Decision: …"; else a last sentence that is nothing but the verdict. The choice itself,
    "[Yes] or [No]", counts as neither, and so does a word other than Yes and No, in whatever
    language: the prompt asks for these two.
    """
    reply = _CHOICE.sub(" ", reply)
    if match := _LEADING.search(reply):
        return _verdict(match[1])
    contradicted = False
    for pattern in (_BRACKETED, _STATED):
        found = {"".join(match.groups("")).lower() for match in pattern.finditer(reply)}
        if len(found) == 1:
            return _verdict(found.pop())
        contradicted |= bool(found)
    closing = None if contradicted else _CLOSING.search(reply)
    return _verdict(closing[1]) if closing else "invalid"


def _verdict(word: str) -> Literal["yes", "no"]:
    return "yes" if word.lower() == "yes" else "no"


def decided(mode: str, answer: Verdict, retrieve: bool, reason: str) -> GateDecision:
    """Build a decision that needed no call to the model."""
    return GateDecision(
        mode=mode,
        answer=answer,
        retrieve=retrieve,
        p_yes=None,
        uncertainty=None,
        threshold=None,
        reply="",
        reason=reason,
    )


async def ask(
    model: ChatModel,
    question: str,
    *,
    mode: AskedMode,
    layout: Layout,
    today: str | None,
    demos: Sequence[Demo],
    threshold: float,
    retrieve_if_invalid: bool,
) -> tuple[GateDecision, Completion]:
    """Ask the model whether the question needs retrieval.

    Args:
        model: The chat model.
        question: The standalone question.
        mode: `ta-are` (date and demonstrations), `vanilla` (neither) or `confidence`
            (TA-ARE's prompt, judged by the probability of Yes).
        layout: Prompt layout.
        today: The date, YYYY-MM-DD; None leaves the sentence about it out.
        demos: Demonstrations; `vanilla` shows none.
        threshold: Least probability of Yes that means retrieval; `confidence` only.
        retrieve_if_invalid: What a reply that is neither Yes nor No means.

    Raises:
        ModelError: No answer, or no log-probabilities where `confidence` needs them.
    """
    by_confidence = mode == "confidence"
    if mode == "vanilla":
        today, demos = None, ()
    completion = await complete(
        model,
        _prompt(question, layout, today, demos),
        max_tokens=CONFIDENCE_TOKENS if by_confidence else MAX_TOKENS,
        logprobs=by_confidence,
    )
    decision = decided(mode, parse(completion.text), False, "")
    decision["reply"] = completion.text
    if by_confidence:
        if not completion.logprobs:
            raise _no_logprobs(mode, model)
        decision["threshold"] = threshold
        decision["p_yes"] = p_yes = probability_of_yes(completion)
        decision["answer"] = "invalid" if p_yes is None else "yes" if p_yes >= threshold else "no"
    decision["retrieve"] = decision["answer"] == "yes" or (
        decision["answer"] == "invalid" and retrieve_if_invalid
    )
    decision["reason"] = _reason(decision)
    return decision, completion


def _prompt(
    question: str, layout: Layout, today: str | None, demos: Sequence[Demo]
) -> list["BaseMessage"]:
    asked = prompts.as_data(question)
    if layout == "inline":
        asked = f"Question: {asked}\nAnswer:"
    instruction = prompts.TA_ARE.format(today=today) if today else prompts.VANILLA
    return prompts.render(layout, instruction, asked, demos, examples_in_inline=True)


async def draft(
    model: ChatModel, question: str, *, layout: Layout, threshold: float
) -> tuple[GateDecision, Completion]:
    """Answer directly, and retrieve where the answer is unsure; the reply is that answer.

    Args:
        model: The chat model.
        question: The standalone question.
        layout: Prompt layout.
        threshold: Least uncertainty that means retrieval. No answer and "I don't know" are
            as uncertain as can be.

    Raises:
        ModelError: No answer, or an answer without log-probabilities.
    """
    completion = await generate.draft(model, question, layout)
    if completion.text and not completion.logprobs:
        raise _no_logprobs("draft", model)
    known = generate.read(completion.text, []).known
    unsure = uncertainty(completion) if known else 1.0
    retrieve = unsure >= threshold
    decision = decided("draft", "yes" if retrieve else "no", retrieve, "")
    decision["reply"] = completion.text
    decision["uncertainty"] = unsure
    decision["threshold"] = threshold
    decision["reason"] = (
        _compared("uncertainty of the direct answer", unsure, decision)
        if known
        else "the model does not know the answer"
    )
    return decision, completion


def uncertainty(completion: Completion) -> float:
    """Return how unsure the model was at its least sure token, 0 to 1.

    That is the entropy over a position's likeliest tokens, renormalised, as a share of that of
    `TOP_LOGPROBS` tokens of equal probability; the largest over the answer. It told right
    answers from wrong ones best (docs/results/gate.md).
    """
    return min(1.0, max(map(_entropy, completion.logprobs)) / math.log(TOP_LOGPROBS))


def _entropy(position: dict[str, float]) -> float:
    """Return the entropy of a position's tokens, in nats."""
    masses = [math.exp(logprob) for logprob in position.values()]
    shares = [mass / sum(masses) for mass in masses if mass]
    return -sum(share * math.log(share) for share in shares if share)


def _no_logprobs(mode: str, model: ChatModel) -> ModelError:
    return ModelError(
        f"gate {mode!r} needs log-probabilities, which model {model.name} at "
        f"{model.endpoint} does not give; {WITHOUT_LOGPROBS}"
    )


def probability_of_yes(completion: Completion) -> float | None:
    """Return P(Yes) / (P(Yes) + P(No)) at the answer's first Yes/No token, or None."""
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


def _reason(decision: GateDecision) -> str:
    if decision["answer"] == "invalid":
        act = "retrieving" if decision["retrieve"] else "not retrieving"
        return f"the reply is neither Yes nor No, so {act}"
    if decision["p_yes"] is not None:
        return _compared("P(Yes)", decision["p_yes"], decision)
    needs = "needs" if decision["retrieve"] else "does not need"
    return f"the model says that it {needs} outside knowledge"


def _compared(what: str, value: float, decision: GateDecision) -> str:
    sign = "≥" if decision["retrieve"] else "<"
    return f"{what} = {value:.3f} {sign} {decision['threshold']}"
