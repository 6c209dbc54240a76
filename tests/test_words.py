"""The words of an index: BM25 against its formula, stored passages and filters, in Tantivy."""

import math
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopgate.retrievers.base import make_passage, passage_id
from hopgate.retrievers.building import build_from_passages
from hopgate.retrievers.filters import parse_where
from hopgate.retrievers.hybrid import CANDIDATES, CODE, RARE, codes, dense_weight, fuse
from hopgate.retrievers.index.reader import load_index
from hopgate.retrievers.index.texts import (
    MAX_QUERY_TERMS,
    Place,
    Stored,
    UnreadableError,
    Words,
    WordsWriter,
    key_of,
)
from hopgate.retrievers.language import analyzer

TEXTS = [
    "The lighthouse on Skerry was first lit in 1811.",
    "Bread is baked before dawn and sold by seven.",
    "The ferry crosses to the mainland twice a day in summer.",
    "Keepers of lighthouses lit lamps, and lamps burned oil.",
]
K1, B = 1.2, 0.75


def key(text: str, title: str = "") -> int:
    return key_of(passage_id(title, text))


def write(folder: Path, texts: Sequence[str], **places: tuple[Place, ...]) -> Words:
    """Write words; `places` names the documents of a text, one `a.txt` by default."""
    writer = WordsWriter(folder, "en")
    writer.put((key(text), Stored("", text, places.get(text, (Place("a.txt"),)))) for text in texts)
    return writer.commit()


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Words:
    return write(tmp_path_factory.mktemp("words"), TEXTS)


def found(words: Words, query: str, k: int = 9) -> list[str]:
    """The texts that a search finds."""
    return [each.text for each in words.read([key for key, _ in words.search(query, k)])]


def by_hand(query: str) -> dict[str, float]:
    """BM25 as Lucene defines it, with (k1 + 1): idf = ln(1 + (N - n + 0.5) / (n + 0.5))."""
    analyze = analyzer("en").analyze
    texts = [Counter(analyze(text)) for text in TEXTS]
    mean = sum(text.total() for text in texts) / len(texts)
    scores = {}
    for text, counts in zip(TEXTS, texts, strict=True):
        norm = K1 * (1 - B + B * counts.total() / mean)
        score = 0.0
        for word in analyze(query):
            n = sum(word in each for each in texts)
            idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
            score += idf * counts[word] * (K1 + 1) / (counts[word] + norm)
        if score:
            scores[text] = score
    return scores


@pytest.mark.parametrize("query", ["lamps of the lighthouse", "who sold bread at dawn", "lit lamp"])
def test_scores_are_those_of_the_formula(words: Words, query: str) -> None:
    expected = by_hand(query)
    hits = words.search(query, 9)
    assert [found for found, _ in hits] == [
        key(text) for text in sorted(expected, key=lambda text: -expected[text])
    ]
    assert [score for _, score in hits] == pytest.approx(
        sorted(expected.values(), reverse=True), abs=1e-5
    )


def test_texts_that_share_no_word_are_not_found(words: Words) -> None:
    for query in ("zeppelin", "", "of the", "🙂", "\x00", "li*", "text:"):
        assert found(words, query) == []


def test_a_query_is_words_and_no_language(words: Words) -> None:
    assert set(found(words, "-bread +ferry (day OR night)^9")) == {TEXTS[1], TEXTS[2]}


def test_a_huge_query_is_cut(words: Words) -> None:
    cut = words.search("bread " * MAX_QUERY_TERMS, 1)
    assert words.search("bread " * 16_000 + "ferry " * 16_000, 1) == cut


def test_texts_without_any_word_are_stored(tmp_path: Path) -> None:
    words = write(tmp_path, ["", "the of", "🙂"])
    assert len(words) == 3
    assert found(words, "the") == []
    assert {each.text for each in words.read(words.keys())} == {"", "the of", "🙂"}


ODD = "\x00 ' \" \\ / \n \u202e é ?*[a] \U0001f642"


def test_odd_names_are_stored_listed_and_filtered(tmp_path: Path) -> None:
    place = Place(ODD, 3, f"§ {ODD}", "1-2")
    words = write(tmp_path, TEXTS, **{TEXTS[0]: (place,), TEXTS[1]: (Place("x" * 5_000),)})
    assert next(words.read([key(TEXTS[0])])).places == (place,)
    assert ODD in words.sources()
    assert words.stamp(ODD) == "1-2"
    assert words.of("source", [ODD, "x" * 5_000]).tolist() == sorted(map(key, TEXTS[:2]))
    for wanted in ({"section": f"§ {ODD}"}, {"page": 3}):
        assert words.keys(parse_where(wanted)).tolist() == [key(TEXTS[0])]


def test_conditions_must_hold_for_one_document_of_a_passage(tmp_path: Path) -> None:
    places = (Place("a.pdf", 1), Place("b.pdf", 2))
    words = write(tmp_path, TEXTS[:1], **{TEXTS[0]: places})
    for source, page, count in (("a.pdf", 1, 1), ("b.pdf", 2, 1), ("a.pdf", 2, 0), ("*", 1, 1)):
        wanted = parse_where({"source": source, "page": page})
        assert len(words.keys(wanted)) == len(words.search("lighthouse", 9, wanted)) == count


def test_a_passage_that_is_not_its_id_is_refused(tmp_path: Path) -> None:
    writer = WordsWriter(tmp_path, "en")
    other = Stored("", "other", (Place("a.txt"),))
    nowhere = Stored("", "no document", ())
    writer.put([(5, other), (key("no document"), nowhere)])
    words = writer.commit()
    for each in (5, key("no document")):
        with pytest.raises(UnreadableError, match="is damaged"):
            list(words.read([each], checked=True))
    with pytest.raises(UnreadableError, match="passage 0000000000000007 is missing"):
        list(words.read([7]))


def test_passages_are_read_in_the_order_asked(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(1500)]
    words = write(tmp_path, texts)
    asked = [*reversed(texts), texts[7], texts[7]]
    assert [each.text for each in words.read(map(key, asked))] == asked
    assert words.keys().tolist() == sorted(map(key, texts))


def test_a_change_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    writer = WordsWriter(tmp_path / "one", "en")
    stored = [(key(text), Stored("", text, (Place(f"{n}.txt"),))) for n, text in enumerate(TEXTS)]
    writer.put(stored)
    before = writer.commit()
    writer = WordsWriter(tmp_path / "two", "en", before)
    writer.remove([key(TEXTS[1]), stored[2][0]])
    writer.put([(stored[2][0], Stored("", TEXTS[2], (Place("new.txt"),)))])
    after = writer.commit()
    assert (len(before), len(after)) == (4, 3)
    assert after.sources() == ["0.txt", "3.txt", "new.txt"]
    assert found(before, "bread") == [TEXTS[1]]
    assert found(after, "bread") == []
    assert found(after, "lighthouse lamps") == found(before, "lighthouse lamps")


def test_an_index_opens_without_leaving_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary := tmp_path / "temporary").mkdir()
    (own := tmp_path / "own").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    writer = WordsWriter(own, "en")
    writer.put([(key(text), Stored("", text, (Place(""),))) for text in TEXTS])
    written = writer.commit()
    before = {file: file.stat() for file in own.iterdir()}
    for _ in range(50):  # a thread of Tantivy writes a lock file now and then
        assert found(Words(written.files, written.meta, "en"), "bread") == [TEXTS[1]]
        assert os.listdir(temporary) == []
    assert {file: file.stat() for file in own.iterdir()} == before


# Fusion


Scored = list[tuple[int, float]]
HUNDREDTHS = st.integers(-100, 5_000).map(lambda number: number / 100)
SCORED = st.dictionaries(st.integers(0, 30), HUNDREDTHS, max_size=20).map(
    lambda scores: sorted(scores.items(), key=lambda each: -each[1])
)


def test_fusion_adds_scores_that_are_scaled_by_the_best() -> None:
    fused = fuse([(4, 0.8), (7, 0.6), (9, 0.4)], [(7, 12.0), (2, 3.0)], weight=0.3, k=3)
    assert fused == [
        (7, pytest.approx(0.3 / 2 + 0.7)),
        (4, pytest.approx(0.3)),
        (2, pytest.approx(0.7 / 4)),
    ]


def test_a_word_that_one_passage_has_decides_over_all_vectors() -> None:
    near = [(key, 0.9 - key / 100) for key in range(CANDIDATES)]
    words = [(CANDIDATES, 18.0), *((key, 7.0) for key in range(CANDIDATES - 1))]
    assert fuse(near, words, 0.3, 1)[0][0] == CANDIDATES


def test_vectors_decide_among_passages_with_the_same_words() -> None:
    near = [(5, 0.7), (3, 0.5), (8, 0.1)]
    assert [key for key, _ in fuse(near, [(8, 4.0), (3, 4.0), (5, 3.9)], 0.6, 3)] == [5, 3, 8]


@pytest.mark.parametrize(
    ("counts", "weight"),
    [
        ({}, 0.6),
        ({"lamp": RARE + 1, "zk4471": CODE + 1}, 0.6),
        ({"lamp": 0, "zk4471": 0}, 0.6),
        ({"tower": 90, "lamp": RARE}, 0.3),
        ({"lamp": 1, "36053": CODE, "tower": 2}, 0.05),
    ],
)
def test_a_word_that_few_passages_have_leaves_the_vectors_little(
    counts: dict[str, int], weight: float
) -> None:
    def count(word: str, most: int) -> int:
        return min(counts[word], most)

    assert dense_weight(list(counts), count) == weight
    assert bool(codes(counts, count)) == (weight == 0.05)


def test_a_code_counts_twice_as_much_as_another_word_that_is_as_rare(tmp_path: Path) -> None:
    texts = ["The field E015 is bad.", "The field ordering is bad.", "Bread is baked."]
    build_from_passages([make_passage("", text) for text in texts], tmp_path / "index")
    found = load_index(tmp_path / "index").search(["E015", "ordering"], 1, mode="bm25")
    (code,), (word,) = found
    assert (code["text"], word["text"]) == (texts[0], texts[1])
    assert code["score"] == pytest.approx(2 * word["score"])


@given(SCORED, st.floats(0.1, 1), st.floats(0, 1), st.integers(1, 5))
def test_fusion_does_not_depend_on_where_an_encoder_has_its_zero(
    dense: Scored, scale: float, zero: float, times: int
) -> None:
    other = [(key, zero + scale * score) for key, score in dense]
    bm25 = [(40, 9.0), (3, 5.0)]
    first = fuse(dense, bm25, 0.6, 50)
    second = dict(fuse(other, [(key, score * times) for key, score in bm25], 0.6, 50))
    assert {key: pytest.approx(score, abs=1e-6) for key, score in first} == second


@given(SCORED, SCORED, st.floats(0, 1))
def test_fusion_gives_each_passage_once_best_first(
    dense: Scored, bm25: Scored, weight: float
) -> None:
    fused = fuse(dense, bm25, weight, k=100)
    assert sorted(key for key, _ in fused) == sorted({key for key, _ in dense + bm25})
    scores = [score for _, score in fused]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 + 1e-9 for score in scores)
    assert fuse(dense, bm25, weight, k=2) == fused[:2]


def test_fusion_of_one_ranking_keeps_it() -> None:
    ranking = [(5, 0.9), (3, 0.4), (8, 0.1)]
    for fused in (fuse(ranking, [], 0.6, 3), fuse([], ranking, 0.3, 3)):
        assert [key for key, _ in fused] == [5, 3, 8]


def test_a_store_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    """Tantivy would allocate what is claimed, which ends the process."""
    writer = WordsWriter(tmp_path, "en")
    writer.put([(key("text"), Stored("", "text", (Place("a.txt"),)))])
    words = writer.commit()
    files, meta = words.files, words.meta
    (store,) = [file for file in files if file.suffix == ".store"]
    content = bytearray(store.read_bytes())
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little") - 28
    skip_index = int.from_bytes(content[end + 4 : end + 12], "little")
    content[skip_index : skip_index + 9] = b"\x7f" * 8 + b"\xff"
    store.write_bytes(content)
    with pytest.raises(ValueError, match=r"\.store is damaged"):
        Words(files, meta, "en")
