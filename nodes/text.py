"""Text forms shared by nodes: normalised answers, sentences, word overlap."""

import re
import string

MAX_LINE_CHARS = 2_000  # of a reply; sentences without spaces between them are slow to tell apart

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# fmt: off
_FUNCTION_WORDS = frozenset((
    "and", "are", "as", "at", "be", "been", "by", "for", "from", "had", "has", "have", "he",
    "her", "his", "in", "is", "it", "its", "of", "on", "or", "she", "that", "their", "there",
    "these", "they", "this", "those", "to", "was", "were", "which", "who", "with",
))
# fmt: on
_WORD = re.compile(r"\w+")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower, drop ASCII punctuation and the articles a/an/the, squeeze white space.

    This is the normalisation of SQuAD's evaluation, which the papers use.
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def has_words(text: str) -> bool:
    """Tell whether there is anything but punctuation and white space."""
    return _WORD.search(text) is not None


def first_line(text: str) -> str:
    """Return the beginning of the first line that has words, empty where none has."""
    return next((line[:MAX_LINE_CHARS] for line in text.splitlines() if has_words(line)), "")


def key_words(text: str) -> tuple[str, ...]:
    """Return the words of a text in alphabetical order: its form up to case, punctuation, order."""
    return tuple(sorted(_WORD.findall(normalise(text.casefold()))))


def sentences(text: str) -> list[str]:
    """Split text into stripped, non-empty sentences; "U.S." ends none."""
    from sentencex import segment

    return [part.strip() for part in segment("en", text) if part.strip()]


def overlap(answer: str, text: str) -> float:
    """Return the share of the answer's normalised words that occur in `text`, 0 to 1."""
    words = set(normalise(answer).split())
    if not words:
        return 0.0
    return len(words & set(normalise(text).split())) / len(words)


def claim(answer: str, question: str) -> str:
    """Return the normalised words by which an answer can be traced to a passage.

    Words of the question and function words are left out, unless nothing else is left.
    """
    words = normalise(answer).split()
    common = set(normalise(question).split()) | _FUNCTION_WORDS
    return " ".join([word for word in words if word not in common] or words)
