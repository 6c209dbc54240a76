"""The search mode that suits a collection and its encoder, measured on the collection itself.

An encoder that does not know the language ranks passages almost at random, and fusing that with
BM25 only harms. Whether it knows the language shows in how often it finds the rest of a passage
from its first sentence, beside BM25 on the same task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from hopgate.common.errors import reason
from hopgate.common.words import sentences, spaced
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.hybrid import Mode, fuse
from hopgate.retrievers.language import analyzer

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_PAIRS = 96
"""Passages that are measured; encoding them takes a few seconds on one core."""
FEW_PAIRS = 24
"""Enough to see that an encoder does not know a language at all."""
MIN_PAIRS = 8
"""With fewer passages, one search returns most of them anyway."""
CLEARLY_WORSE = 0.75
"""With a lower share of BM25's mean reciprocal rank, an encoder does not know the language."""
MIN_GAIN = 1.05
"""Least ratio of hybrid's mean reciprocal rank to BM25's for hybrid to be chosen."""
MIN_GAIN_ENGLISH = 1.0
"""The same in English, which encoders are trained on first; real questions share fewer words with
a passage than its first sentence does, so hybrid gains more on them."""
NEARLY_ALL = 0.95
"""With this mean reciprocal rank, hybrid is chosen too: there is little left to gain."""

_SENTENCE_CHARS = 200
_REST_CHARS = 300
_MIN_CHARS = 20
"""Least length of a sentence and of the rest of its passage."""

Pair = tuple[str, str]
"""A first sentence and the rest of its passage."""
Vectors: TypeAlias = "NDArray[np.float32]"


class SampleEncoder(Protocol):
    """The part of an encoder that is measured."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Encode queries."""
        ...

    def encode_passages(self, passages: Sequence[Passage]) -> Vectors:
        """Encode passages."""
        ...


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

    At most `MAX_PAIRS` passages are measured. BM25 is chosen if the encoder alone is clearly worse
    than BM25 on the first few, or if hybrid search is no better than BM25 on the whole sample.
    Hybrid is chosen otherwise, and where there are too few passages to measure.

    Args:
        passages: Some passages of the collection, spread over it, or all.
        encoder: The index's encoder.
        language: The index's language, one of `retrievers.language.LANGUAGES`.

    Returns:
        The mode and the reason, for people.
    """
    pairs = _pairs(passages)
    if len(pairs) < MIN_PAIRS:
        return "hybrid", "too few passages to measure the encoder"
    few, others = pairs[:FEW_PAIRS], pairs[FEW_PAIRS:]
    vectors = _encode(few, encoder)
    found = _measure(few, vectors, language)
    if found.dense < CLEARLY_WORSE * found.bm25:
        return "bm25", f"the encoder does not know the language: {found}"
    if others:
        queries, rests = map(np.concatenate, zip(vectors, _encode(others, encoder), strict=True))
        found = _measure(pairs, (queries, rests), language)
        gain = MIN_GAIN_ENGLISH if language == "en" else MIN_GAIN
        if found.hybrid < min(gain * found.bm25, NEARLY_ALL):
            return "bm25", f"the encoder adds little to BM25: {found}"
    return "hybrid", f"the encoder adds to BM25: {found}"


class _Found(NamedTuple):
    """Mean reciprocal ranks of the rest of each passage, searched by its first sentence."""

    passages: int
    dense: float
    bm25: float
    hybrid: float

    def __str__(self) -> str:
        return (
            f"on {self.passages} passages, searching for the rest by the first sentence, the mean "
            f"reciprocal rank is {self.dense:.2f} dense, {self.bm25:.2f} BM25, "
            f"{self.hybrid:.2f} hybrid"
        )


def _pairs(passages: Sequence[Passage]) -> list[Pair]:
    """Cut passages, evenly spaced over the collection, into first sentence and rest.

    The pairs are in an order in which the first few are evenly spaced too.
    """
    usable = list(dict.fromkeys(_cut_all(passages)))
    step = max(len(usable) / MAX_PAIRS, 1.0)
    chosen = [usable[int(place * step)] for place in range(min(len(usable), MAX_PAIRS))]
    stride = max(len(chosen) // FEW_PAIRS, 1)
    return [pair for start in range(stride) for pair in chosen[start::stride]]


def _cut_all(passages: Sequence[Passage]) -> Iterator[Pair]:
    step = max(len(passages) // (4 * MAX_PAIRS), 1)
    for passage in passages[::step]:
        text = passage["text"][: 4 * _REST_CHARS]
        first, *others = sentences(text) or [""]
        rest = " ".join(others)
        if not rest:  # such as Thai, which has no full stop
            first, rest = first[: len(first) // 2], first[len(first) // 2 :]
        if min(len(first), len(rest)) >= _MIN_CHARS:
            yield first[:_SENTENCE_CHARS], rest[:_REST_CHARS]


def _encode(pairs: Sequence[Pair], encoder: SampleEncoder) -> tuple[Vectors, Vectors]:
    rests = [make_passage("", rest) for _, rest in pairs]
    return encoder.encode_queries([first for first, _ in pairs]), encoder.encode_passages(rests)


def _measure(pairs: Sequence[Pair], vectors: tuple[Vectors, Vectors], language: str) -> _Found:
    queries, rests = vectors
    dense = np.argsort(-(queries @ rests.T), axis=1, kind="stable").tolist()
    bm25 = _bm25(pairs, language)
    hybrid = [
        [number for number, _ in fuse(rankings, len(pairs))]
        for rankings in zip(dense, bm25, strict=True)
    ]
    return _Found(len(pairs), *map(_mean_reciprocal_rank, (dense, bm25, hybrid)))


def _mean_reciprocal_rank(rankings: Sequence[Sequence[int]]) -> float:
    """Return the mean over all pairs, each of whose own rest has its number; 0 if not found."""
    ranks = [
        1 / (found.index(own) + 1) if own in found else 0 for own, found in enumerate(rankings)
    ]
    return sum(ranks) / len(ranks)


def _bm25(pairs: Sequence[Pair], language: str) -> list[list[int]]:
    """Return the numbers of the rests that BM25 finds for each first sentence, best first."""
    from tantivy import Document, Index, Occur, Query, SchemaBuilder

    builder = SchemaBuilder()
    builder.add_text_field("body", tokenizer_name=language, index_option="freq")
    builder.add_unsigned_field("number", stored=True)
    schema = builder.build()
    index, words = Index(schema), analyzer(language)
    index.register_tokenizer(language, words)
    with index.writer(num_threads=1) as writer:
        for number, (_, rest) in enumerate(pairs):
            document = Document()
            document.add_text("body", spaced(rest))
            document.add_unsigned("number", number)
            writer.add_document(document)
    index.reload()
    searcher = index.searcher()
    rankings = []
    for query, _ in pairs:
        terms = dict.fromkeys(words.analyze(spaced(query)))
        clauses = [(Occur.Should, Query.term_query(schema, "body", term, "freq")) for term in terms]
        hits = searcher.search(Query.boolean_query(clauses), len(pairs)).hits
        rankings.append([searcher.doc(address)["number"][0] for _, address in hits])
    return rankings
