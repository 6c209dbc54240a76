"""The search mode that suits a collection and its encoder, measured on the collection itself.

An encoder that does not know the language ranks passages almost at random, and fusing that with
BM25 only harms. Whether it knows the language shows in how often it finds the rest of a passage
from its first sentence, beside BM25 on the same task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hopgate.common.words import sentences, spaced
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.language import analyzer

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_PAIRS = 64
"""Passages that are measured; encoding them takes a few seconds on one core."""
FEW_PAIRS = 24
"""Enough to see that an encoder does not know a language at all."""
MIN_PAIRS = 8
"""With fewer passages nearly all of them are read anyway."""
CLEARLY_WORSE = 0.75
"""Share of BM25's mean reciprocal rank below which few pairs are enough to decide."""

_SENTENCE_CHARS = 200
_REST_CHARS = 300
_MIN_CHARS = 20
"""Least length of a sentence and of the rest of its passage."""

Pair = tuple[str, str]


class SampleEncoder(Protocol):
    """The part of an encoder that is measured."""

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries."""
        ...

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Encode passages."""
        ...


def default_mode(
    passages: Sequence[Passage], encoder: SampleEncoder, language: str
) -> tuple[Mode, str]:
    """Choose between hybrid search and BM25 alone for a collection.

    At most `MAX_PAIRS` passages are measured. The result is BM25 if the encoder is clearly worse
    on the first few, or worse at all on the whole sample; otherwise, and where there are too few
    passages to measure, it is hybrid.

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
    dense, bm25 = _dense(*vectors), _bm25(few, language)
    if dense < CLEARLY_WORSE * bm25:
        return "bm25", _reason(dense, bm25, len(few))
    if not others:
        return "hybrid", _reason(dense, bm25, len(few))
    both = zip(vectors, _encode(others, encoder), strict=True)
    dense, bm25 = _dense(*map(np.concatenate, both)), _bm25(pairs, language)
    return "hybrid" if dense >= bm25 else "bm25", _reason(dense, bm25, len(pairs))


def _reason(dense: float, bm25: float, count: int) -> str:
    return (
        f"the rest of a passage was found from its first sentence with a mean reciprocal rank of "
        f"{dense:.2f} by the encoder and {bm25:.2f} by BM25 ({count} passages)"
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


def _encode(
    pairs: Sequence[Pair], encoder: SampleEncoder
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    rests = [make_passage("", rest) for _, rest in pairs]
    return encoder.encode_queries([first for first, _ in pairs]), encoder.encode_passages(rests)


def _dense(queries: NDArray[np.float32], rests: NDArray[np.float32]) -> float:
    """Return the mean reciprocal rank of each sentence's own rest; ties count as ranked before."""
    similar = queries @ rests.T
    ranks = np.sum(similar >= np.diagonal(similar)[:, None], axis=1)
    return float(np.mean(1 / np.maximum(ranks, 1)))


def _bm25(pairs: Sequence[Pair], language: str) -> float:
    """Return the mean reciprocal rank of each sentence's own rest; 0 where it is not found."""
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
    found = []
    for number, (query, _) in enumerate(pairs):
        terms = dict.fromkeys(words.analyze(spaced(query)))
        clauses = [(Occur.Should, Query.term_query(schema, "body", term, "freq")) for term in terms]
        hits = searcher.search(Query.boolean_query(clauses), len(pairs)).hits
        ranked = [searcher.doc(address)["number"][0] for _, address in hits]
        found.append(1 / (ranked.index(number) + 1) if number in ranked else 0.0)
    return sum(found) / len(found)
