"""Reading an answer: which passages it cites, and whether they hold what it says."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from hopgate.common.words import sentences
from hopgate.models.chat import without_thoughts
from hopgate.nodes.run.state import Citation
from hopgate.nodes.texts.statements import Statements, full_text
from hopgate.nodes.texts.support import Support, support
from hopgate.nodes.texts.text import CODE, MARK, keep_marks
from hopgate.retrievers.base import Hit

UNKNOWN = "I don't know"
MIN_SUPPORT = 0.5  # share of the answer's words that a passage must hold to count as its source
MAX_QUOTE_LINES = 4
MAX_QUOTE_CHARS = 500
PARTS = ("id", "title", "quote", "number", "source", "page", "section", "metadata")

_UNKNOWN = re.compile(
    r"^\W*i (do not|don['’]?t) know\b(?!.*\b(but|however|though)\b)", re.IGNORECASE | re.DOTALL
)
# Without passages, a bracket inside the answer belongs to it: `a[1]`.
_TRAILING = re.compile(
    r"(?<!\s\[\d\])(?<!\s\[\d\d\])(?<!\s\[\d{3}\])"  # try a row of markers as a whole
    r"(?<!\s)((?:\s++\[\d{1,3}\])++)\W*+$"
)
_PREFIX = re.compile(r"^\s*answer\s*:\s*", re.IGNORECASE)


_MAY_BE_MARK = re.compile(r"\s*+(?:\[[\d\s,]*)?\Z")


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
    found = support(plain, question, [full_text(hit) for hit in evidence])
    cited, warnings = _markers(reply, len(evidence))
    numbers = [i + 1 for i in cited]
    text = _PREFIX.sub("", keep_marks(reply, numbers)).strip()
    for i in cited:
        if found.words and not found.share(full_text(evidence[i])):
            warnings.append(f"[{i + 1}] does not support the answer that cites it")
    cited = cited or _trace(found, evidence)
    if not cited:
        warnings.append("no retrieved passage supports the answer")
    citations = [_cite(evidence[i], found, number=i + 1 if numbers else None) for i in cited]
    return Answer(text, True, citations, warnings)


def read_full_answer(
    reply: str, evidence: Sequence[Hit], question: str = "", said: str = ""
) -> Answer:
    """Read a full answer, and check each of its statements against the evidence.

    Marks outside code cite passages; those of no passage are dropped with a warning. A statement
    has a warning of its own if a passage that it cites holds none of its words, or if nothing that
    was found or said holds any of its names and numbers.

    Args:
        reply: The model's reply.
        evidence: The passages that it was shown.
        question: The message that it answers.
        said: The conversation before.
    """
    if not reply:
        return Answer(UNKNOWN, False, [], ["the model gave an empty answer"])
    known = not _UNKNOWN.search(reply)
    if not evidence:
        return Answer(reply, known, [], [])
    cited, warnings = _markers(CODE.sub(" ", reply), len(evidence))
    numbers = [i + 1 for i in cited]
    checked = Statements(CODE.sub(" ", reply), evidence, question, said)
    warnings += checked.warnings()
    if cited:
        citations = [_cite(evidence[i], checked.support(i + 1), number=i + 1) for i in cited]
    else:
        found = support(reply, question, [full_text(hit) for hit in evidence])
        traced = _trace(found, evidence)
        citations = [_cite(evidence[i], found) for i in traced]
        if known and not traced and not warnings:
            warnings = ["the answer cites no passage, and none holds its words"]
    return Answer(keep_marks(reply, numbers).strip(), known, citations, warnings)


def settled(reply: str, passages: int, *, thoughts: bool = False) -> str:
    """Return the part of a full answer so far that reading it will not change.

    The rest may be a mark, or a reasoning model's thoughts.

    Args:
        reply: The text so far.
        passages: Number of passages that the model was shown.
        thoughts: Whether thoughts come first that no `<think>` starts.
    """
    text = without_thoughts(reply)
    if thoughts and text == reply:
        return ""
    text = text.lstrip()
    if "<think>".startswith(text[:7].lower()):
        return ""
    if not passages:
        return text.rstrip()
    open_code = text.find("`", max((code.end() for code in CODE.finditer(text)), default=0))
    text = text if open_code < 0 else text[:open_code]
    return keep_marks(_MAY_BE_MARK.sub("", text), range(1, passages + 1)).lstrip()


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
    shares = [found.share(full_text(hit)) for hit in evidence]
    best = max(shares, default=0.0)
    return [i for i, each in enumerate(shares) if each == best][:2] if best >= MIN_SUPPORT else []


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


def _cite(hit: Hit, found: Support, *, number: int | None = None) -> Citation:
    known: dict[str, Any] = {**hit, "quote": _quote(hit["text"], found), "number": number}
    return cast(Citation, {key: known[key] for key in PARTS if known.get(key) is not None})
