"""Answer metrics against cases worked by hand."""

import pytest

from hopgate.evaluation.metrics import exact_match, f1, match


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("The Beatles.", ["beatles"], True),
        ("It was lit in 1858, by hand.", ["1858"], True),
        ("It was lit in 1857.", ["1858"], False),
        ("Paris", ["Lyon", "Paris"], True),
        ("anything", ["The"], False),
        ("anything", [], False),
        ("", ["Paris"], False),
        ("5,600 people", ["5,600"], True),
    ],
)
def test_match_is_containment_of_a_normalised_gold(
    prediction: str, golds: list[str], expected: bool
) -> None:
    assert match(prediction, golds) is expected


def test_exact_match_ignores_case_articles_and_punctuation() -> None:
    assert exact_match("the  U.S.", ["A US"])
    assert not exact_match("the US Army", ["US"])
    assert not exact_match("", ["the"])


def test_f1_by_hand() -> None:
    # shared words 2, predicted 3, gold 2: P = 2/3, R = 1, F1 = 0.8
    assert f1("Port Emmerel harbour", ["Port Emmerel"]) == pytest.approx(0.8)
    assert f1("nothing shared", ["Port Emmerel"]) == 0
    assert f1("Port", ["Emmerel", "the port"]) == 1
    assert f1("word", ["the"]) == 0
