"""Reason: one sentence of thought over the evidence, and whether to stop (IRCoT).

Trivedi et al. 2023, as Adaptive-RAG and Flare-Aug run it.
"""

import re
from collections.abc import Sequence
from typing import Literal

from hopgate.models.chat import ChatModel, Completion, Layout, complete
from hopgate.nodes import prompts
from hopgate.nodes.text import first_line, has_words, key_words, sentences
from hopgate.retrievers.base import Hit

StopReason = Literal[
    "answered",
    "hop_limit",
    "repeated_query",
    "no_new_passage",
    "evidence_budget",
    "deadline",
    "no_thought",
    "retriever_failed",
]

MAX_TOKENS = 80  # a long sentence
MAX_THOUGHT_CHARS = 600  # some endpoints write on past `max_tokens`

_FINAL = re.compile(
    r"\banswer is\s*:|^((so|thus|therefore|hence),? )?the answer is\b(?! not\b)", re.IGNORECASE
)
# Sentences that conclude or calculate name nothing new to search for.
_NOT_FACTUAL = re.compile(
    r"^(thus|so|that is|therefore|hence)\b|\d\s*[-+*/−×]\s*\d[^=]*=", re.IGNORECASE
)


async def think(
    model: ChatModel,
    question: str,
    evidence: Sequence[Hit],
    thoughts: Sequence[str],
    layout: Layout,
) -> tuple[str, Completion]:
    """Write the next sentence of reasoning.

    Args:
        model: The chat model.
        question: The standalone question.
        evidence: Every passage found so far.
        thoughts: The sentences written at earlier hops, oldest first.
        layout: Prompt layout.

    Returns:
        The thought, empty when the model wrote none, and the call's cost.

    Raises:
        ModelError: No answer from the model.
    """
    shown = prompts.fit(evidence, model.evidence_chars)
    asked = prompts.grounded(layout, shown, question)
    if thoughts:
        asked += f"\nReasoning: {prompts.as_data(' '.join(thoughts))}"
    if layout == "inline":
        asked += "\nNext sentence:"
    completion = await complete(
        model,
        prompts.render(layout, prompts.REASON, asked, prompts.REASON_DEMOS),
        max_tokens=MAX_TOKENS,
        stop=["\n"] if layout == "turns" else None,
    )
    return _one_thought(completion.text), completion


def _one_thought(reply: str) -> str:
    parts = sentences(first_line(reply))
    count = 2 if len(parts) > 1 and is_final(parts[1]) else 1
    thought = " ".join(parts[:count])[:MAX_THOUGHT_CHARS].strip()
    return thought if has_words(thought) else ""


def is_final(thought: str) -> bool:
    """Tell whether a thought states the answer ("… answer is: …")."""
    return _FINAL.search(thought) is not None


def next_query(question: str, thoughts: Sequence[str]) -> str:
    """Return the last sentence of the reasoning that states a fact, else the question."""
    for thought in reversed(thoughts):
        for sentence in reversed(sentences(thought)):
            if has_words(sentence) and not _NOT_FACTUAL.search(sentence):
                return sentence
    return question


def already_asked(query: str, earlier: Sequence[str]) -> bool:
    """Tell whether a query was searched before, up to case, punctuation and word order."""
    words = key_words(query)
    return any(words == key_words(each) for each in earlier)
