"""The search mode that suits a collection and its encoder, measured on the collection itself.

An encoder that does not know the language ranks passages almost at random, and fusing that with
BM25 only harms. Whether it knows the language shows in how often it finds the rest of a passage
from its first sentence, beside BM25 on the same task. That says nothing of questions that name
something, so names are searched too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args

import numpy as np

from hopgate.common.errors import reason
from hopgate.common.words import sentences, spaced
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.hybrid import CANDIDATES, DENSE_WEIGHT_RARE, Mode, Scored, fuse
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
MAX_LOSS = 0.05
"""Most that hybrid's mean reciprocal rank of names may be below BM25's for hybrid to be chosen."""

_WORD = re.compile(r"\w(?:[\w.-]{0,60}\w)?")
_CODE = re.compile(r"[\d_]|\w[A-Z]")
_MIN_NAME = 4
_SENTENCE_CHARS = 200
_REST_CHARS = 300
_MIN_CHARS = 20
"""Least length of a sentence and of the rest of its passage."""

Pair = tuple[str, str]
"""A first sentence and the rest of its passage."""
Vectors: TypeAlias = "NDArray[np.float32]"


Key = TypeVar("Key")
Rankings: TypeAlias = tuple[Scored[Key], Scored[Key], float]
"""What `fuse` takes."""
Search: TypeAlias = Callable[[Sequence[str], Vectors], Iterable[Rankings[str]]]
"""Searches the whole collection for queries, given their vectors too."""


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
    passages: Sequence[Passage], encoder: SampleEncoder, language: str, search: Search
) -> tuple[Mode, str]:
    """Choose the default mode of a collection, see `measured_mode`; hybrid if that fails."""
    try:
        return measured_mode(passages, encoder, language, search)
    except Exception as error:  # whatever an app's own encoder raises: all else is done
        return "hybrid", f"the encoder could not be measured: {reason(error, 300)}"


def measured_mode(
    passages: Sequence[Passage], encoder: SampleEncoder, language: str, search: Search
) -> tuple[Mode, str]:
    """Choose between hybrid search and BM25 alone for a collection.

    At most `MAX_PAIRS` passages are measured. BM25 is chosen if the encoder alone is clearly worse
    than BM25 on the first few, if hybrid search is worse than BM25 on the whole sample, or if it
    loses names that BM25 finds. Hybrid is chosen otherwise, and where there are too few passages to
    measure.

    Args:
        passages: Some passages of the collection, spread over it, or all.
        encoder: The index's encoder.
        language: The index's language, one of `retrievers.language.LANGUAGES`.
        search: Searches the collection.

    Returns:
        The mode and the reason, for people.
    """
    pairs = _pairs(passages)
    if len(pairs) < MIN_PAIRS:
        return "hybrid", "too few passages to measure the encoder"
    few, others = pairs[:FEW_PAIRS], pairs[FEW_PAIRS:]
    vectors = _encode(few, encoder)
    found = _measure_rests(few, vectors, language)
    said = "mean reciprocal rank of a passage's rest, searched by its first sentence: "
    if found.dense < CLEARLY_WORSE * found.bm25:
        return "bm25", f"the encoder does not know the language; {said}{found}"
    if others:
        queries, rests = map(np.concatenate, zip(vectors, _encode(others, encoder), strict=True))
        found = _measure_rests(pairs, (queries, rests), language)
    said += f"{found}"
    if found.hybrid < found.bm25:
        return "bm25", f"the encoder adds nothing to BM25; {said}"
    if len(names := _names(passages)) >= MIN_PAIRS:
        found = _measure_names(names, encoder, search)
        said += f"; of a passage, searched by a name or code in it: {found}"
        if found.hybrid < found.bm25 - MAX_LOSS:
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


def _names(passages: Sequence[Passage]) -> dict[str, str]:
    """Return a name, number or code of each of some passages, with the passage's id."""
    step = max(ceil(len(passages) / MAX_PAIRS), 1)
    names = ((_name(each["text"]), each["id"]) for each in passages[::step])
    return {name: own for name, own in names if name}


def _name(text: str) -> str:
    """Return the longest code of a text, or else its longest name; empty if it has neither."""
    words = [each for each in _WORD.findall(text)[1:] if len(each) >= _MIN_NAME]
    codes = [each for each in words if _CODE.search(each)]
    return max(codes or [each for each in words if each[0].isupper()], key=len, default="")


def _measure_names(names: dict[str, str], encoder: SampleEncoder, search: Search) -> _Found:
    queries = list(names)
    return _measure(list(search(queries, encoder.encode_queries(queries))), list(names.values()))


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


def _measure_rests(
    pairs: Sequence[Pair], vectors: tuple[Vectors, Vectors], language: str
) -> _Found:
    queries, rests = vectors
    rankings = []
    for scores, bm25 in zip(queries @ rests.T, _bm25(pairs, language), strict=True):
        best = np.argsort(-scores, kind="stable")
        dense = list(zip(best.tolist(), scores[best].tolist(), strict=True))
        rankings.append((dense, bm25, DENSE_WEIGHT_RARE))
    return _measure(rankings, range(len(pairs)))


def _measure(rankings: Sequence[Rankings[Key]], wanted: Sequence[Key]) -> _Found:
    dense, bm25, _ = zip(*rankings, strict=True)
    hybrid = [fuse(*each, 2 * CANDIDATES) for each in rankings]
    means = [
        sum(_reciprocal_rank(each, own) for each, own in zip(of_mode, wanted, strict=True))
        / len(wanted)
        for of_mode in (dense, bm25, hybrid)
    ]
    return _Found(len(wanted), *means)


def _reciprocal_rank(ranking: Scored[Key], wanted: Key) -> float:
    return next((1 / rank for rank, (key, _) in enumerate(ranking, 1) if key == wanted), 0.0)


def _bm25(pairs: Sequence[Pair], language: str) -> list[list[tuple[int, float]]]:
    """Return the numbers of the rests that BM25 finds for each first sentence, with scores."""
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
        rankings.append([(searcher.doc(address)["number"][0], score) for score, address in hits])
    return rankings
