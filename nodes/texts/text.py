"""Text functions shared by nodes: checks, normalised answers, first lines, key words."""

import re
import string
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any

from hopgate.common.files import has_surrogate, shown
from hopgate.common.words import words

MAX_QUESTION_CHARS = 4_000

MAX_LINE_CHARS = 2_000  # of a reply; text without spaces between sentences is slow to split

MARK = re.compile(r"(?<!\s)\s*+\[(\d{1,3}(?:\s*,\s*\d{1,3})*)\]")
"""A mark that cites passages by their numbers, such as ` [1]` or `[1, 3]`."""

CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
"""Code in Markdown, where `[1]` is not a mark."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WORD = re.compile(r"\w+")
_INVISIBLE = ("Cc", "Cf", "Cs")  # control, format (zero-width, bidirectional, tags), surrogates
_JOINERS = "\u200c\u200d"
# ChatML, Llama, Mistral, Gemma, DeepSeek and SentencePiece's sentence marks.
_MARKER = re.compile(
    r"<(?=[|｜]|/?s>|<?/?SYS>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk)>)|\[(?=/?INST\])",
    re.IGNORECASE,
)
_MARKER_END = re.compile(r"([|｜])>")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def check_message(message: object) -> str:
    """Return a user's text, stripped.

    Raises:
        ValueError: It is not a string, is blank, or holds a lone surrogate.
    """
    if not isinstance(message, str | None):
        raise ValueError(f"the question is {shown(message)}; give a text in `question`")
    if not message or not as_data(message):
        raise ValueError("the question is empty; give a text in `question` or a user message")
    if has_surrogate(message):
        raise ValueError("the question contains half of a character (a lone surrogate); remove it")
    return message.strip()


def check_question(question: object) -> str:
    """Return a question of a dataset or a tool, stripped.

    Raises:
        ValueError: It is not a string, is blank, holds a lone surrogate, or is longer than
            `MAX_QUESTION_CHARS`.
    """
    question = check_message(question)
    if len(question) > MAX_QUESTION_CHARS:
        raise ValueError(
            f"the question has {len(question)} characters; at most {MAX_QUESTION_CHARS} are "
            "allowed; shorten it, or index the text and ask about it"
        )
    return question


def inert(text: str) -> str:
    """Drop invisible characters and break chat-template markers, which some servers act on.

    Joiners stay, because some scripts and emoji need them.
    """
    visible = text if text.isprintable() else "".join(filter(_is_visible, text))
    if "<" in visible or "[" in visible:  # most texts have neither, and a search takes longer
        visible = _MARKER.sub(r"\g<0> ", visible)
    return _MARKER_END.sub(r"\1 >", visible) if ">" in visible else visible


def _is_visible(character: str) -> bool:
    return (
        character.isspace()
        or character in _JOINERS
        or unicodedata.category(character) not in _INVISIBLE
    )


def as_data(text: str) -> str:
    """Keep a text from looking like part of the prompt.

    On a single line it cannot start a numbered passage, a question or an answer of its own.
    """
    return " ".join(inert(text).split())


def outside_code(change: Callable[[str], str], text: str) -> str:
    """Return Markdown with everything changed but its code."""
    if "`" not in text:
        return change(text)
    ends = [0, *(end for code in CODE.finditer(text) for end in code.span()), len(text)]
    parts = [text[start:end] for start, end in pairwise(ends)]
    return "".join(part if at % 2 else change(part) for at, part in enumerate(parts))


def keep_marks(text: str, numbers: Collection[int]) -> str:
    """Drop the marks that cite a passage by any other number than these."""

    def kept(mark: re.Match[str]) -> str:
        given = list(map(int, mark[1].split(",")))
        known = [number for number in given if number in numbers]
        if len(known) == len(given):
            return mark[0]
        space = mark[0][: mark[0].index("[")]
        return f"{space}[{', '.join(map(str, known))}]" if known else ""

    return outside_code(lambda part: MARK.sub(kept, part), text)


def without_marks(text: str, citations: Iterable[Mapping[str, Any]]) -> str:
    """Drop the marks of an answer's citations; brackets with other numbers stay."""
    numbers = {each.get("number") for each in citations}

    def kept(mark: re.Match[str]) -> str:
        return "" if numbers.issuperset(map(int, mark[1].split(","))) else mark[0]

    return outside_code(lambda part: MARK.sub(kept, part), text).strip()


def normalise(text: str) -> str:
    """Lowercase, drop ASCII punctuation and the articles a/an/the, collapse white space.

    This is the normalisation of SQuAD's evaluation, which the papers use.
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def has_words(text: str) -> bool:
    """Return whether a text holds anything but punctuation and white space."""
    return _WORD.search(text) is not None


def first_line(text: str) -> str:
    """Return the first line that has words, cut to `MAX_LINE_CHARS`; empty if none has."""
    return next((line[:MAX_LINE_CHARS] for line in text.splitlines() if has_words(line)), "")


def key_words(text: str) -> tuple[str, ...]:
    """Return a text's words in alphabetical order, to compare texts by their words alone."""
    return tuple(sorted(words(normalise(text.casefold()))))
