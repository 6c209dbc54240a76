"""Answer metrics against cases worked by hand, and what must hold for any text."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopgate.evaluation.measuring.matching import exact_match, f1, match
from hopgate.nodes.texts.text import normalise

# Σ is lowered by its neighbours, so punctuation beside it matters.
TEXTS = st.text(st.characters(exclude_characters="Σ"), max_size=30) | st.lists(
    st.sampled_from(["The", "a", "an", "Paris", "paris", "12", "2012", "U.S.", "—", "“", "é", "!"]),
    max_size=6,
).map(" ".join)
GOLDS = st.lists(TEXTS, max_size=4)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Beatles!", "beatles"),
        ("  A\tman \n of the  people ", "man of people"),
        ("an apple and a theory", "apple and theory"),
        ("U.S.A.", "usa"),
        ("rock-'n'-roll", "rocknroll"),
        ("1,000.50", "100050"),
        ("t-h-e end", "end"),  # punctuation goes first, so an article may appear
        ("ÉCOLE", "école"),
        ("“Dune”", "“dune”"),  # only ASCII punctuation goes
        ("The the THE", ""),
        ("?!", ""),
        ("", ""),
    ],
)
def test_the_normalised_form_is_squad_s(text: str, expected: str) -> None:
    assert normalise(text) == expected


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("It was lit in 1858, by hand.", ["1858"], True),
        ("It was lit in 1857.", ["1858"], False),
        ("anything", ["The"], False),
        ("anything", ["", "?!"], False),
        ("", ["The"], False),
        ("5,600 people", ["5,600"], True),
        ("It is in the United States of America", ["USA", "the United States"], True),
        ("He lives in Sao Paulo", ["São Paulo"], False),
        ("東京都です", ["東京"], True),
        ("Paris", ["Paris, France"], False),  # the gold must stand in the prediction
        ("man of the year", ["Man of Year"], True),
        ("Since 2012", ["12"], True),  # letters, not words
        ("I don't know", ["no"], True),
    ],
)
def test_match_is_containment_of_a_normalised_gold(
    prediction: str, golds: list[str], expected: bool
) -> None:
    assert match(prediction, golds) is expected


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("the  U.S.", ["A US"], True),
        ("77.", ["77", "77 years old"], True),
        ("77 years old", ["77", "77 years old"], True),
        ("since 2012", ["12", "2012"], False),
        ("O’Brien", ["O'Brien"], False),
        ("", [], False),
    ],
)
def test_exact_match_by_hand(prediction: str, golds: list[str], expected: bool) -> None:
    assert exact_match(prediction, golds) is expected


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("Port Emmerel harbour", ["Port Emmerel"], 0.8),  # P = 2/3, R = 1
        ("nothing shared", ["Port Emmerel"], 0),
        ("Port", ["Emmerel", "the port"], 1),
        ("the", ["the"], 0),
        ("word", [], 0),
        ("the cat sat on the mat", ["a cat on a hat"], 4 / 7),  # cat, on; 4 and 3 words
        ("ho ho ho", ["ho ho"], 0.8),  # a word counts as often as both have it
        ("13 February 2024", ["Feb 13, 2024"], 2 / 3),
        ("2012", ["12"], 0),
    ],
)
def test_f1_by_hand(prediction: str, golds: list[str], expected: float) -> None:
    assert f1(prediction, golds) == pytest.approx(expected)


@settings(deadline=None)
@given(TEXTS, GOLDS)
def test_an_exact_match_is_a_match_with_full_f1(prediction: str, golds: list[str]) -> None:
    assert 0 <= f1(prediction, golds) <= 1
    if exact_match(prediction, golds):
        assert match(prediction, golds)
        assert f1(prediction, golds) == 1


@settings(deadline=None)
@given(TEXTS, GOLDS, TEXTS)
def test_one_more_gold_never_lowers_a_score(prediction: str, golds: list[str], more: str) -> None:
    for metric in (match, exact_match, f1):
        assert metric(prediction, [*golds, more]) >= metric(prediction, golds)


@settings(deadline=None)
@given(TEXTS, GOLDS, st.data())
def test_ascii_case_articles_and_punctuation_change_nothing(
    prediction: str, golds: list[str], data: st.DataObject
) -> None:
    words = prediction.split()
    at = data.draw(st.integers(0, len(words)))
    article = data.draw(st.sampled_from(["a", "An", "THE"]))
    mark = data.draw(st.sampled_from(string.punctuation))
    place = data.draw(st.integers(0, len(prediction)))
    others = (
        " ".join([*words[:at], article, *words[at:]]),
        prediction[:place] + mark + prediction[place:],
        "".join(each.swapcase() if each.isascii() else each for each in prediction),
    )
    for other in others:
        for metric in (match, exact_match, f1):
            assert metric(other, golds) == metric(prediction, golds)
