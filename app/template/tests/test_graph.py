"""The graph with its real index and router. Only the model is a fake, so no key is needed."""

import pytest
from graph import DOCUMENTS, INDEX, make_graph
from langchain_core.language_models import FakeListChatModel

from hopgate import Context
from hopgate.retrievers.building import build_index
from hopgate.retrievers.sources import open_source


@pytest.fixture(scope="session", autouse=True)
def index() -> None:
    """Bring the index up to date with the documents."""
    build_index([DOCUMENTS], INDEX)


@pytest.mark.parametrize(
    ("question", "file"),
    [("When does the canteen close?", "canteen.md"), ("Where do visitors park?", "visitors.md")],
)
def test_a_question_finds_the_file_that_answers_it(question: str, file: str) -> None:
    (hits,) = open_source(str(INDEX)).search([question], 1)
    assert [hit["source"] for hit in hits] == [file]


def test_an_answer_names_its_source() -> None:
    model = FakeListChatModel(responses=["At half past two [1]."])
    question = "When does the canteen close?"
    result = make_graph(model).invoke({"question": question}, context=Context(strategy="single"))
    assert result["answer"] == "At half past two [1]."
    assert [each["source"] for each in result["citations"]] == ["canteen.md"]


def test_common_knowledge_is_answered_without_a_search() -> None:
    model = FakeListChatModel(responses=["[No]", "Paris"])  # the gate's reply, then the answer
    question = "What is the capital of France?"
    result = make_graph(model).invoke({"question": question}, context=Context(gate="ta-are"))
    assert result["answer"] == "Paris"
    assert result["usage"]["retrieval_steps"] == 0
