"""Generate: the answer, directly or over the evidence, with citations that were checked."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NotRequired

from typing_extensions import TypedDict

from hopgate.models.chat import ChatModel, Completion, Layout, complete
from hopgate.nodes import prompts
from hopgate.nodes.text import claim, overlap, sentences
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

MAX_TOKENS = 100  # RetrievalQA, appendix A.4
UNKNOWN = "I don't know"
MIN_SUPPORT = 0.5  # share of the answer's words in a passage that counts as its source

_UNKNOWN = re.compile(
    r"^\W*i (do not|don['’]?t) know\b(?!.*\b(but|however|though)\b)", re.IGNORECASE | re.DOTALL
)
_BARE = ("", "yes", "no")  # nothing in them could be traced
_MARKER = re.compile(r"\s*\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]")
# Without passages a bracket inside the answer is its own: `a[1]`.
_TRAILING = re.compile(
    r"(?<!\s\[\d\])(?<!\s\[\d\d\])(?<!\s\[\d{3}\])"  # a row of markers is tried as a whole
    r"((?:\s+\[\d{1,3}\])++)\W*$"
)
_PREFIX = re.compile(r"^\s*answer\s*:\s*", re.IGNORECASE)


class Citation(TypedDict):
    """A passage that the answer rests on, with the sentence that supports it."""

    id: str
    title: str
    quote: str
    source: NotRequired[str]
    """File or address that the passage comes from."""
    page: NotRequired[int]
    section: NotRequired[str]
    """Heading that the passage stands under."""


class Answer(NamedTuple):
    """An answer with its sources and what is doubtful about it."""

    text: str
    known: bool
    citations: list[Citation]
    warnings: list[str]

    @property
    def doubt(self) -> str | None:
        """Why the answer may not be good enough: unknown, or citations that do not hold."""
        if self.warnings:
            return self.warnings[0]
        return None if self.known else "the model does not know the answer"


async def generate(
    model: ChatModel, question: str, evidence: Sequence[Hit], layout: Layout
) -> tuple[Answer, Completion]:
    """Answer the question, over the evidence if there is any (RetrievalQA, figures 7 and 8).

    Raises:
        ModelError: No answer from the model.
    """
    shown = prompts.fit(evidence, model.evidence_chars)
    completion = await _ask(model, question, shown, layout, streamed=True)
    return read(completion.text, shown, question), completion


async def draft(model: ChatModel, question: str, layout: Layout) -> Completion:
    """Answer as `generate` does without evidence, with log-probabilities.

    Whether it becomes the answer is open, so its tokens are kept out of the stream.

    Raises:
        ModelError: No answer from the model.
    """
    return await _ask(model, question, [], layout, logprobs=True)


async def _ask(
    model: ChatModel,
    question: str,
    shown: Sequence[Hit],
    layout: Layout,
    *,
    logprobs: bool = False,
    streamed: bool = False,
) -> Completion:
    return await complete(
        model,
        _prompt(question, shown, layout),
        max_tokens=MAX_TOKENS,
        stop=["\n"] if layout == "turns" else None,
        logprobs=logprobs,
        streamed=streamed,
    )


def _prompt(question: str, shown: Sequence[Hit], layout: Layout) -> list["BaseMessage"]:
    if shown:
        asked = prompts.grounded(layout, shown, question)
        instruction, demos = prompts.GROUNDED, prompts.GROUNDED_DEMOS
        if layout == "inline":
            instruction += prompts.CITE
    else:
        asked = prompts.inert(question)
        if layout == "inline":
            asked = f"Question: {asked}"
        instruction, demos = prompts.DIRECT, prompts.DIRECT_DEMOS
    if layout == "inline":
        asked += "\nAnswer:"
    return prompts.render(layout, instruction, asked, demos)


def read(reply: str, evidence: Sequence[Hit], question: str = "") -> Answer:
    """Take a reply apart: the answer, its citations checked against the evidence.

    A marker such as `[2]` must name a passage that was shown; one that does not is
    dropped with a warning. A reply without markers is traced to the passages that hold
    its words, those that the question did not already say.
    """
    if not evidence:
        text = _PREFIX.sub("", _TRAILING.sub("", reply)).strip()
        _, warnings = _markers("".join(_TRAILING.findall(reply)), 0)
        return _doubtful(text) or Answer(text, True, [], warnings)
    text = _PREFIX.sub("", _MARKER.sub("", reply)).strip()
    if doubtful := _doubtful(text):
        return doubtful
    words = claim(text, question)
    cited, warnings = _markers(reply, len(evidence))
    for i in cited:
        if words not in _BARE and not overlap(words, _whole(evidence[i])):
            warnings.append(f"[{i + 1}] does not support the answer that cites it")
    cited = cited or _trace(words, evidence)
    if not cited:
        warnings.append("no retrieved passage supports the answer")
    return Answer(text, True, [_cite(evidence[i], words) for i in cited], warnings)


def _doubtful(text: str) -> Answer | None:
    if not text:
        return Answer(UNKNOWN, False, [], ["the model gave an empty answer"])
    return Answer(UNKNOWN, False, [], []) if _UNKNOWN.search(text) else None


def _markers(reply: str, shown: int) -> tuple[list[int], list[str]]:
    """Return the positions of cited passages, each once, and what is wrong with others."""
    cited: list[int] = []
    warnings: list[str] = []
    for number in (number for group in _MARKER.findall(reply) for number in group.split(",")):
        position = int(number) - 1
        if not 0 <= position < shown:
            warnings.append(f"the model cited [{number.strip()}], which was not retrieved")
        elif position not in cited:
            cited.append(position)
    return cited, list(dict.fromkeys(warnings))


def _trace(words: str, evidence: Sequence[Hit]) -> list[int]:
    if words in _BARE:
        return []
    support = [overlap(words, _whole(hit)) for hit in evidence]
    best = max(support, default=0.0)
    return [i for i, each in enumerate(support) if each == best][:2] if best >= MIN_SUPPORT else []


def _whole(hit: Hit) -> str:
    return f"{hit['title']} {hit['text']}"


def _cite(hit: Hit, words: str) -> Citation:
    numbers = " ".join(word for word in words.split() if any(map(str.isdigit, word)))
    quote = max(
        sentences(hit["text"]),
        key=lambda each: (overlap(numbers, each), overlap(words, each)),
        default="",
    )
    citation = Citation(id=hit["id"], title=hit["title"], quote=quote)
    if "source" in hit:
        citation["source"] = hit["source"]
    if "page" in hit:
        citation["page"] = hit["page"]
    if "section" in hit:
        citation["section"] = hit["section"]
    return citation
