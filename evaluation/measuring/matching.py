"""Answer metrics as RetrievalQA defines them: the best score over the accepted answers.

All compare SQuAD's normalised form (`hopgate.nodes.texts.text.normalise`), which handles only ASCII
punctuation and English articles: curly quotes stay, and a letter with a combining accent differs
from the precomposed letter. An accepted answer that normalises to nothing is ignored, unlike in
the authors' code: it would match every prediction.
"""

from collections import Counter
from collections.abc import Sequence

from hopgate.nodes.texts.text import normalise


def match(prediction: str, golds: Sequence[str]) -> bool:
    """Return whether the prediction contains a gold answer (the paper, section 3.2).

    Letters are compared, as published, not words: gold "12" matches "2012" and gold "no" matches
    "I don't know". `exact_match` and `f1` compare words.
    """
    predicted = normalise(prediction)
    return any(gold in predicted for gold in _normalised(golds))


def exact_match(prediction: str, golds: Sequence[str]) -> bool:
    """Return whether the prediction equals a gold answer."""
    return normalise(prediction) in _normalised(golds)


def f1(prediction: str, golds: Sequence[str]) -> float:
    """Return the best harmonic mean of word precision and recall, 0 to 1."""
    predicted = normalise(prediction).split()
    return max((_f1(predicted, gold.split()) for gold in _normalised(golds)), default=0.0)


def _normalised(golds: Sequence[str]) -> list[str]:
    return [form for gold in golds if (form := normalise(gold))]


def _f1(predicted: Sequence[str], gold: Sequence[str]) -> float:
    shared = sum((Counter(predicted) & Counter(gold)).values())
    return 2 * shared / (len(predicted) + len(gold)) if shared else 0.0
