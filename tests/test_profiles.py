"""The profile of a model, and questions that are flagged as outside the training data."""

from __future__ import annotations

import pytest

from hopgate.classifiers.doubts import doubt, is_english, mostly_english
from hopgate.classifiers.profiles import profile_for
from hopgate.classifiers.router import load_router

ALL = ("flan-t5-xl", "flan-t5-xxl", "gpt-4o-mini", "gpt-4o")


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        ("openai:gpt-4o", "gpt-4o"),
        ("openai:gpt-4o-mini", "gpt-4o-mini"),
        ("openai:gpt-4o-2024-08-06", "gpt-4o"),
        ("openai:gpt-4.1-nano", "gpt-4o-mini"),
        ("openai:o3", "gpt-4o"),
        ("claude-sonnet-4-5", "gpt-4o"),
        ("openai:claude-3-5-haiku", "gpt-4o-mini"),
        ("openai:google/gemini-2.5-flash", "gpt-4o-mini"),
        ("gemini-1.5-pro", "gpt-4o"),
        ("openai:meta-llama/Llama-3.1-70B-Instruct", "gpt-4o"),
        ("openai:Qwen/Qwen2.5-7B-Instruct", "gpt-4o-mini"),
        ("openai:google/flan-t5-xxl", "flan-t5-xxl"),
        ("google/flan-t5-large", "flan-t5-xl"),
        ("local:smollm2", "flan-t5-xl"),
        ("openai:something-new", "flan-t5-xl"),
    ],
)
def test_model_gets_the_most_similar_profile(model: str, profile: str) -> None:
    assert profile_for(model, ALL) == profile


def test_profile_of_the_models_own_name_comes_first() -> None:
    assert profile_for("local:smollm2", (*ALL, "local-smollm2")) == "local-smollm2"
    assert profile_for("openai:my-model", ("my-model", "gpt-4o")) == "my-model"
    assert profile_for("openai:llama3:8b", ("llama3-8b", "gpt-4o")) == "llama3-8b"


def test_router_without_a_fitting_profile_uses_its_first() -> None:
    assert profile_for("openai:gpt-4o", ("custom",)) is None


@pytest.mark.parametrize(
    "question",
    [
        "Was ist die Hauptstadt von Frankreich?",
        "¿Quién fue la madre del director de la película?",
        "Кто написал Войну и мир?",
        "Jaka jest stolica Francji?",
    ],
)
def test_other_languages_are_flagged(question: str) -> None:
    assert not is_english(question)
    reason = doubt(question, tokens=10, limit=384, english=True)
    assert reason is not None and "English" in reason
    assert doubt(question, tokens=10, limit=384, english=False) is None


@pytest.mark.parametrize(
    ("query", "english"),
    [
        ("When did it open?", True),
        ("capital of France", True),
        ("romeo and juliet author", True),
        ("red planet name", True),
        ("skerrane light first lit", True),
        ("hauptstadt deutschland", False),
        ("capitale france", False),
        ("Wer schrieb den Faust?", False),
        ("¿Quién escribió Don Quijote?", False),
        ("法国的首都", False),
        ("столица франции", False),
    ],
)
def test_keywords_are_english_if_their_words_are(query: str, english: bool) -> None:
    (reason,) = load_router().doubts([query])
    assert (reason is None) == english


def test_the_language_of_a_router_is_that_of_most_training_questions() -> None:
    assert mostly_english(["Who is it?"] * 19 + ["Wer ist es?"])
    assert not mostly_english(["Who is it?"] * 18 + ["Wer ist es?"] * 2)
