"""The gate: does this question need outside knowledge at all?

TA-ARE and vanilla prompting follow RetrievalQA (sections 3 and 4); `confidence` reads
the probability of Yes from the log-probabilities of the same answer.
"""

import math
import re
from typing import TYPE_CHECKING, Literal

from typing_extensions import TypedDict

from hopgate.models.chat import ChatModel, Completion, Layout, ModelError, complete
from hopgate.nodes import prompts

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

Verdict = Literal["yes", "no", "invalid", "skipped"]
AskedMode = Literal["ta-are", "vanilla", "confidence"]

MAX_TOKENS = 100  # RetrievalQA, appendix A.4
CONFIDENCE_TOKENS = 4  # "[", "Yes", "]" and one to spare
MIN_MASS = 0.05  # of Yes and No together, for a position to count as the answer

# "[Yes] or [No]", "yes/no": the choice repeated, which decides nothing.
_CHOICE = re.compile(
    r"\b(?:yes|no)\b\W*(?:\bor\b|\band\b|/)\W*\b(?:yes|no)\b(?!\s+\w)", re.IGNORECASE
)
_LEADING = re.compile(r"^[\W_]*(?:answer[\W_]+)?(yes|no)(?![^\W_])", re.IGNORECASE)
_BRACKETED = re.compile(r"\[\s*(yes|no)\s*\]", re.IGNORECASE)
_STATED = re.compile(r"\banswer(?:\s+is)?[^\w.!?]+(yes|no)\b", re.IGNORECASE)


class GateDecision(TypedDict):
    """What the gate said, and why; plain values for the state."""

    mode: str
    answer: Verdict
    retrieve: bool
    p_yes: float | None
    threshold: float | None
    reply: str
    reason: str


def parse(reply: str) -> Literal["yes", "no", "invalid"]:
    """Read Yes, No or neither from a model's reply.

    The first word decides; else the one bracketed verdict; else "answer is …". The
    choice itself, "[Yes] or [No]", counts as neither.
    """
    reply = _CHOICE.sub(" ", reply)
    if match := _LEADING.search(reply):
        return _verdict(match[1])
    for pattern in (_BRACKETED, _STATED):
        found = {verdict.lower() for verdict in pattern.findall(reply)}
        if len(found) == 1:
            return _verdict(found.pop())
    return "invalid"


def _verdict(word: str) -> Literal["yes", "no"]:
    return "yes" if word.lower() == "yes" else "no"


def decided(mode: str, answer: Verdict, retrieve: bool, reason: str) -> GateDecision:
    """Build a decision that needed no call to the model."""
    return GateDecision(
        mode=mode,
        answer=answer,
        retrieve=retrieve,
        p_yes=None,
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
    today: str,
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
        today: The date, YYYY-MM-DD.
        threshold: Least probability of Yes that means retrieval; `confidence` only.
        retrieve_if_invalid: What a reply that is neither Yes nor No means.

    Raises:
        ModelError: No answer, or no log-probabilities where `confidence` needs them.
    """
    by_confidence = mode == "confidence"
    completion = await complete(
        model,
        _prompt(question, mode, layout, today),
        max_tokens=CONFIDENCE_TOKENS if by_confidence else MAX_TOKENS,
        logprobs=by_confidence,
    )
    decision = decided(mode, parse(completion.text), False, "")
    decision["reply"] = completion.text
    if by_confidence:
        if not completion.logprobs:
            raise ModelError(
                f"gate 'confidence' needs log-probabilities, which model {model.name} at "
                f"{model.endpoint} does not give; use gate 'ta-are'"
            )
        decision["threshold"] = threshold
        decision["p_yes"] = p_yes = probability_of_yes(completion)
        decision["answer"] = "invalid" if p_yes is None else "yes" if p_yes >= threshold else "no"
    decision["retrieve"] = decision["answer"] == "yes" or (
        decision["answer"] == "invalid" and retrieve_if_invalid
    )
    decision["reason"] = _reason(decision)
    return decision, completion


def _prompt(question: str, mode: AskedMode, layout: Layout, today: str) -> list["BaseMessage"]:
    asked = question if layout == "turns" else f"Question: {question}\nAnswer:"
    if mode == "vanilla":
        return prompts.render(layout, prompts.VANILLA, asked)
    more = mode == "confidence" and layout == "turns"
    return prompts.render(
        layout,
        prompts.TA_ARE.format(today=today),
        asked,
        prompts.CONFIDENCE_DEMOS if more else prompts.GATE_DEMOS,
        examples_in_inline=True,
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
        sign = "≥" if decision["retrieve"] else "<"
        return f"P(Yes) = {decision['p_yes']:.3f} {sign} {decision['threshold']}"
    needs = "needs" if decision["retrieve"] else "does not need"
    return f"the model says that it {needs} outside knowledge"
