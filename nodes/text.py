"""Text forms shared by nodes: normalised answers, sentences, word overlap."""

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower, drop ASCII punctuation and the articles a/an/the, squeeze white space.

    This is the normalisation of SQuAD's evaluation, which the papers use.
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


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


def novel(answer: str, question: str) -> str:
    """Return the answer's normalised words that the question does not have, else all of them."""
    words = normalise(answer).split()
    asked = set(normalise(question).split())
    return " ".join([word for word in words if word not in asked] or words)
