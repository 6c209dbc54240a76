"""The search mode that suits a collection and its encoder, measured on the collection itself.

An encoder that does not know the language ranks passages almost at random, and fusing that with
BM25 only harms. Whether it knows the language shows in how often it finds the rest of a passage
from its first sentence, beside BM25 on the same task. That says nothing of questions that name
something, so the rests are also searched by a name or code in each.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np

from hopgate.common.errors import reason
from hopgate.common.words import sentences
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.hybrid import DENSE_WEIGHT_RARE, Mode, Scored, fuse
from hopgate.retrievers.index.texts import Place, Stored, Words, WordsWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_PAIRS = 96
"""Passages that are measured; encoding them takes a few seconds on one core."""
MIN_PAIRS = 8
"""With fewer passages, one search returns most of them anyway."""
CLEARLY_WORSE = 0.75
"""With a lower share of BM25's mean reciprocal rank, an encoder does not know the language."""

MAX_LOSS = 0.05
"""Most that hybrid's mean reciprocal rank of names may be below BM25's for hybrid to be chosen."""

_WORD = re.compile(r"\w[\w.-]{2,60}\w")
_CODE = re.compile(r"[\d_]|\w[A-Z]")
_SENTENCE_CHARS = 200
_REST_CHARS = 300
_MIN_CHARS = 20
"""Least length of a sentence and of the rest of its passage."""

Vectors: TypeAlias = "NDArray[np.float32]"


class SampleEncoder(Protocol):
    """The part of an encoder that is measured."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Encode queries."""
        ...

    def encode_passages(self, passages: Sequence[Passage]) -> Vectors:
        """Encode passages."""
        ...


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


def default_mode(
    passages: Sequence[Passage], encoder: SampleEncoder, language: str
) -> tuple[Mode, str]:
    """Choose the default mode of a collection, see `measured_mode`; hybrid if that fails."""
    try:
        return measured_mode(passages, encoder, language)
    except Exception as error:  # whatever an app's own encoder raises: all else is done
        return "hybrid", f"the encoder could not be measured: {reason(error, 300)}"


def measured_mode(
    passages: Sequence[Passage], encoder: SampleEncoder, language: str
) -> tuple[Mode, str]:
    """Choose between hybrid search and BM25 alone for a collection.

    BM25 is chosen if the encoder alone is clearly worse than BM25, if hybrid search is worse, or
    if it loses names that BM25 finds. Hybrid is chosen otherwise, and where there are too few
    passages to measure.

    Args:
        passages: Some passages of the collection, spread over it, or all.
        encoder: The index's encoder.
        language: The index's language, one of `retrievers.language.LANGUAGES`.

    Returns:
        The mode and the reason, for people.
    """
    pairs = list(dict.fromkeys(_pairs(passages)))
    step = max(len(pairs) / MAX_PAIRS, 1.0)
    pairs = [pairs[int(at * step)] for at in range(min(len(pairs), MAX_PAIRS))]
    if len(pairs) < MIN_PAIRS:
        return "hybrid", "too few passages to measure the encoder"
    firsts, rests = zip(*pairs, strict=True)
    names = {name: own for own, rest in enumerate(rests) if (name := _name(rest))}
    with tempfile.TemporaryDirectory(prefix="hopgate-") as folder:
        find = _finder(rests, encoder, _words(Path(folder), rests, language))
        by_first = find({first: own for own, first in enumerate(firsts)})
        by_name = find(names) if len(names) >= MIN_PAIRS else None
    said = (
        f"mean reciprocal rank of a passage's rest, searched by its first sentence: {by_first}"
        + (f"; by a name or code in it: {by_name}" if by_name else "")
    )
    if by_first.dense < CLEARLY_WORSE * by_first.bm25:
        return "bm25", f"the encoder does not know the language; {said}"
    if by_first.hybrid < by_first.bm25:
        return "bm25", f"the encoder adds nothing to BM25; {said}"
    if by_name and by_name.hybrid < by_name.bm25 - MAX_LOSS:
        return "bm25", f"with the encoder, names are lost; {said}"
    return "hybrid", f"the encoder adds to BM25; {said}"


class _Found(NamedTuple):
    """How many queries were measured, and each mode's mean reciprocal rank."""

    queries: int
    dense: float
    bm25: float
    hybrid: float

    def __str__(self) -> str:
        return (
            f"{self.dense:.2f} dense, {self.bm25:.2f} BM25, {self.hybrid:.2f} hybrid "
            f"({self.queries} queries)"
        )


def _name(text: str) -> str:
    """Return the longest code of a text, or else its longest name; empty if it has neither."""
    words = _WORD.findall(text)[1:]
    codes = [each for each in words if _CODE.search(each)]
    return max(codes or [each for each in words if each[0].isupper()], key=len, default="")


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


def _finder(
    rests: Sequence[str], encoder: SampleEncoder, words: Words
) -> Callable[[Mapping[str, int]], _Found]:
    """Return a function that searches queries, given with the number of the rest of each."""
    vectors = encoder.encode_passages([make_passage("", rest) for rest in rests])

    def find(asked: Mapping[str, int]) -> _Found:
        ranks = []
        scores_of = encoder.encode_queries([*asked]) @ vectors.T
        for (query, own), scores in zip(asked.items(), scores_of, strict=True):
            best = np.argsort(-scores, kind="stable")
            dense = list(zip(best.tolist(), scores[best].tolist(), strict=True))
            bm25 = words.search(query, len(rests))
            hybrid = fuse(dense, bm25, DENSE_WEIGHT_RARE, len(rests))
            ranks.append([_reciprocal_rank(each, own) for each in (dense, bm25, hybrid)])
        return _Found(len(ranks), *np.mean(ranks, axis=0).tolist())

    return find


def _words(folder: Path, rests: Sequence[str], language: str) -> Words:
    writer = WordsWriter(folder, language)
    writer.put((number, Stored("", rest, (Place(""),))) for number, rest in enumerate(rests))
    return writer.commit()


def _reciprocal_rank(ranking: Scored[int], wanted: int) -> float:
    return next((1 / rank for rank, (key, _) in enumerate(ranking, 1) if key == wanted), 0.0)
