"""BM25 and reciprocal rank fusion: checked against the formulas, on real files."""

import math
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopgate.retrievers.bm25 import K1, MAX_QUERY_TERMS, B, Bm25, Kept, words
from hopgate.retrievers.hybrid import fuse

TEXTS = [
    "The lighthouse on Skerry was first lit in 1811.",
    "Bread is baked before dawn and sold by seven.",
    "The ferry crosses to the mainland twice a day in summer.",
    "Keepers of lighthouses lit lamps, and lamps burned oil.",
    "",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bm25") / "bm25"
    Bm25.build(TEXTS, folder)
    return folder


def by_hand(query: str) -> list[float]:
    """Lucene's BM25 of each text: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), tf without (k1 + 1)."""
    texts = [Counter(words(text)) for text in TEXTS]
    mean = sum(sum(text.values()) for text in texts) / len(texts)
    scores = []
    for text in texts:
        norm = K1 * (1 - B + B * sum(text.values()) / mean)
        scores.append(0.0)
        for word in words(query):
            n = sum(word in each for each in texts)
            idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
            scores[-1] += idf * text[word] / (text[word] + norm)
    return scores


@pytest.mark.parametrize("query", ["lamps of the lighthouse", "who sold bread at dawn", "lit lamp"])
def test_scores_are_those_of_the_formula(folder: Path, query: str) -> None:
    positions, scores = Bm25.open(folder).search([query], k=5)
    expected = by_hand(query)
    found = [position for position in positions[0].tolist() if position >= 0]
    assert found == sorted((i for i, s in enumerate(expected) if s), key=lambda i: -expected[i])
    assert scores[0, : len(found)] == pytest.approx([expected[i] for i in found], abs=1e-5)
    assert not scores[0, len(found) :].any()


def test_words_are_compared_by_stem_and_without_case(folder: Path) -> None:
    assert words("The Keepers' LAMPS were burning") == ["keeper", "lamp", "were", "burn"]
    positions, _ = Bm25.open(folder).search(["BURNS"], k=1)
    assert positions.tolist() == [[3]]


def test_texts_that_share_no_word_are_not_found(folder: Path) -> None:
    index = Bm25.open(folder)
    positions, scores = index.search(["zeppelin", "", "of the", "🙂"], k=2)
    assert (positions == -1).all()
    assert not scores.any()
    assert index.search([], k=2)[0].shape == (0, 2)


def test_only_what_is_allowed_is_found_and_k_may_exceed_the_collection(folder: Path) -> None:
    index = Bm25.open(folder)
    allowed = np.array([True, True, True, False, True])
    positions, _ = index.search(["lighthouse lamps"], k=50, allowed=allowed)
    assert positions.tolist() == [[0, -1, -1, -1, -1]]
    assert index.search(["lighthouse lamps"], k=50)[0][0].tolist() == [3, 0, -1, -1, -1]


def test_ties_are_in_the_order_of_the_texts(tmp_path: Path) -> None:
    Bm25.build(["same words"] * 40, tmp_path / "bm25")
    positions, _ = Bm25.open(tmp_path / "bm25").search(["words"], k=7)
    assert positions.tolist() == [list(range(7))]


def test_building_again_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    Bm25.build(TEXTS, tmp_path / "again")
    for file in folder.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
        assert file.suffix in (".npy", ".json")


def test_scores_are_those_of_bm25s(folder: Path) -> None:
    from bm25s import BM25

    theirs = BM25(k1=K1, b=B, method="lucene")
    theirs.index([words(text) for text in TEXTS], show_progress=False)
    ours = BM25.load(folder)
    assert ours.vocab_dict.keys() == theirs.vocab_dict.keys()
    for word in filter(None, ours.vocab_dict):
        found, expected = (
            index.get_scores_from_ids([index.vocab_dict[word]]) for index in (ours, theirs)
        )
        assert np.array_equal(found, expected), word


@settings(max_examples=40, deadline=None)  # each writes four indexes
@given(
    st.lists(st.text("aбc d", max_size=12), min_size=1, max_size=8),
    st.lists(st.text("aбce ", max_size=12), max_size=4),
    st.randoms(use_true_random=False),
)
def test_what_is_kept_scores_as_if_all_was_read_again(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], new: list[str], chance: Random
) -> None:
    folder = tmp_path_factory.mktemp("kept")
    kept = chance.sample(range(len(before)), chance.randint(0, len(before)))
    origins = kept + [-1] * len(new)
    chance.shuffle(origins)
    if not origins:
        return
    coming = iter(new)
    after = [before[origin] if origin >= 0 else next(coming) for origin in origins]
    Bm25.build(before, folder / "before")
    Bm25.build(new, folder / "changed", kept=Kept(folder / "before", np.array(origins)))
    Bm25.build(after, folder / "after")
    changed, fresh = (Bm25.open(folder / name) for name in ("changed", "after"))
    assert np.array_equal(changed._terms[0], fresh._terms[0])
    queries = ["a", "б c", "d e a", "ac ca"]
    for found, expected in zip(changed.search(queries, 20), fresh.search(queries, 20), strict=True):
        assert np.array_equal(found, expected)
    Bm25.build([], folder / "again", kept=Kept(folder / "changed", np.arange(len(after))))
    again = Bm25.open(folder / "again").search(queries, 20)
    assert np.array_equal(again[1], fresh.search(queries, 20)[1])


@pytest.mark.parametrize(
    ("written", "asked"), [("cafe\u0301", "café"), ("\ufb01rst", "First"), ("１８１１", "1811")]
)
def test_letters_are_compared_however_they_are_encoded(
    tmp_path: Path, written: str, asked: str
) -> None:
    Bm25.build([f"It was {written}."], tmp_path / "bm25")
    assert Bm25.open(tmp_path / "bm25").search([asked], 1)[0].tolist() == [[0]]


def test_an_index_without_a_table_of_terms_is_searched_and_kept(
    folder: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(folder, tmp_path / "old"))
    (old / "terms.npy").unlink()
    found, expected = (Bm25.open(each).search(["lit lamps", "bread"], 5) for each in (old, folder))
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    (old / "counts.npy").unlink()
    assert Bm25.can_keep(folder)
    assert not Bm25.can_keep(old)


def test_texts_without_any_word_are_indexed(tmp_path: Path) -> None:
    Bm25.build(["", "the of"], tmp_path / "bm25")
    index = Bm25.open(tmp_path / "bm25")
    assert len(index) == 2
    assert index.search(["anything"], k=2)[0].tolist() == [[-1, -1]]


def test_progress_counts_up_to_all_texts(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    Bm25.build(["word"] * 3000, tmp_path / "bm25", lambda *step: seen.append(step))
    assert seen == [(2048, 3000), (3000, 3000)]


def test_a_huge_query_is_cut(folder: Path) -> None:
    index = Bm25.open(folder)
    cut = index.search(["bread " * MAX_QUERY_TERMS], k=1)
    whole = index.search(["bread " * 16_000 + "ferry " * 16_000], k=1)
    assert np.array_equal(cut[0], whole[0])
    assert np.array_equal(cut[1], whole[1])


def test_eight_threads_find_what_one_finds(folder: Path) -> None:
    index = Bm25.open(folder)
    queries = ["keepers of the lamps", "bread", "ferries in summer", "first lit"] * 20
    alone = [index.search([query], k=3)[0].tolist() for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: index.search([q], k=3)[0].tolist(), queries)) == alone


@pytest.mark.parametrize("name", ["data.csc.index.npy", "params.index.json"])
def test_damaged_files_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    Bm25.build(TEXTS, tmp_path / "bm25")
    file = tmp_path / "bm25" / name
    for damage in (lambda: file.write_bytes(b"\x00" * 9), file.unlink):
        damage()
        with pytest.raises(ValueError, match=r"bm25 are damaged .*build the index again"):
            Bm25.open(tmp_path / "bm25")


def test_fusion_sums_reciprocal_ranks() -> None:
    fused = fuse([[4, 7, 9], [7, 2, -1]], k=3)
    assert fused == [
        (7, pytest.approx(1 / 62 + 1 / 61)),
        (4, pytest.approx(1 / 61)),
        (2, pytest.approx(1 / 62)),
    ]


@given(st.lists(st.lists(st.integers(-1, 30), unique=True, max_size=20), max_size=3))
def test_fusion_gives_each_passage_once_best_first(rankings: list[list[int]]) -> None:
    fused = fuse(rankings, k=100)
    positions = [position for position, _ in fused]
    assert sorted(positions) == sorted({p for ranking in rankings for p in ranking if p >= 0})
    assert [score for _, score in fused] == sorted((s for _, s in fused), reverse=True)
    assert fuse(rankings, k=2) == fused[:2]


def test_fusion_of_one_ranking_keeps_it() -> None:
    assert [position for position, _ in fuse([[5, 3, 8]], k=3)] == [5, 3, 8]
