"""The search mode that suits a collection and its encoder, measured on the collection itself.

An encoder that does not know the language ranks passages almost at random, and fusing that with
BM25 only harms. Whether it knows the language shows in how often it finds the rest of a passage
from its first sentence, beside BM25 on the same task.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np

from hopgate.common.words import sentences
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.encoders import Encoder
from hopgate.retrievers.hybrid import DENSE_WEIGHT_RARE, Mode, Scored, fuse
from hopgate.retrievers.index.texts import Place, Stored, Words, WordsWriter

MAX_PAIRS = 96
"""Passages that are measured; encoding them takes a few seconds on one core."""
MIN_PAIRS = 8
"""With fewer passages, one search returns most of them anyway."""
CLEARLY_WORSE = 0.75
"""With a lower share of BM25's mean reciprocal rank, an encoder does not know the language."""

_SENTENCE_CHARS = 200
_REST_CHARS = 300
_MIN_CHARS = 20
"""Least length of a sentence and of the rest of its passage."""

Given: TypeAlias = tuple[Mode, str] | Literal["auto"] | None
"""The default mode and its reason; `auto` to measure it anew, None to keep what is there."""
GIVEN = "as given"


def given_mode(mode: str) -> Given:
    """Return the default mode that a user named; empty for none.

    Raises:
        ValueError: There is no such mode.
    """
    if not mode or mode == "auto":
        return "auto" if mode else None
    known: dict[str, Mode] = {each: each for each in get_args(Mode)}
    if mode not in known:
        raise ValueError(f"unknown mode {mode!r}: use auto, {', '.join(known)}")
    return known[mode], GIVEN


def default_mode(passages: Sequence[Passage], encoder: Encoder, language: str) -> tuple[Mode, str]:
    """Choose between hybrid search and BM25 alone for a collection.

    BM25 is chosen if the encoder alone is clearly worse than BM25, or if hybrid search is worse.
    Hybrid is chosen otherwise, and where there are too few passages to measure.

    Args:
        passages: Some passages of the collection, spread over it, or all.
        encoder: The index's encoder.
        language: The index's language, one of `retrievers.language.LANGUAGES`.

    Returns:
        The mode and the reason, for people.
    """
    pairs = list(dict.fromkeys(_pairs(passages)))
    pairs = pairs[:: max(1, len(pairs) // MAX_PAIRS)][:MAX_PAIRS]
    if len(pairs) < MIN_PAIRS:
        return "hybrid", "too few passages to measure the encoder"
    dense, bm25, hybrid = _found(pairs, encoder, language)
    said = (
        "mean reciprocal rank of a passage's rest, searched by its first sentence: "
        f"{dense:.2f} dense, {bm25:.2f} BM25, {hybrid:.2f} hybrid ({len(pairs)} queries)"
    )
    if dense < CLEARLY_WORSE * bm25:
        return "bm25", f"the encoder does not know the language; {said}"
    if hybrid < bm25:
        return "bm25", f"the encoder adds nothing to BM25; {said}"
    return "hybrid", f"the encoder adds to BM25; {said}"


def _pairs(passages: Sequence[Passage]) -> Iterator[tuple[str, str]]:
    """Cut passages, evenly spaced over the collection, into first sentence and rest."""
    for passage in passages[:: max(len(passages) // (4 * MAX_PAIRS), 1)]:
        text = passage["text"][: 4 * _REST_CHARS]
        first, *others = sentences(text) or [""]
        rest = " ".join(others)
        if not rest:  # such as Thai, which has no full stop
            first, rest = first[: len(first) // 2], first[len(first) // 2 :]
        if min(len(first), len(rest)) >= _MIN_CHARS:
            yield first[:_SENTENCE_CHARS], rest[:_REST_CHARS]


def _found(
    pairs: Sequence[tuple[str, str]], encoder: Encoder, language: str
) -> tuple[float, float, float]:
    """Return the mean reciprocal ranks of the rests by vectors, by BM25 and by both."""
    queries, rests = zip(*pairs, strict=True)
    vectors = encoder.encode_passages([make_passage("", rest) for rest in rests])
    ranks = []
    with tempfile.TemporaryDirectory(prefix="hopgate-") as folder:
        words = _words(Path(folder), rests, language)
        for own, scores in enumerate(encoder.encode_queries(queries) @ vectors.T):
            best = np.argsort(-scores, kind="stable")
            dense = list(zip(best.tolist(), scores[best].tolist(), strict=True))
            bm25 = words.search(queries[own], len(pairs))
            hybrid = fuse(dense, bm25, DENSE_WEIGHT_RARE, len(pairs))
            ranks.append([_reciprocal_rank(each, own) for each in (dense, bm25, hybrid)])
    dense_mean, bm25_mean, hybrid_mean = np.mean(ranks, axis=0).tolist()
    return dense_mean, bm25_mean, hybrid_mean


def _words(folder: Path, rests: Sequence[str], language: str) -> Words:
    writer = WordsWriter(folder, language)
    writer.put((number, Stored("", rest, (Place(""),))) for number, rest in enumerate(rests))
    return writer.commit()


def _reciprocal_rank(ranking: Scored[int], wanted: int) -> float:
    return next((1 / rank for rank, (key, _) in enumerate(ranking, 1) if key == wanted), 0.0)
