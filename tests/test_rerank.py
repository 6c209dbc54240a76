"""Reranking with a real cross-encoder, tiny and random."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from doubles import CORRANE, FERRY, LIGHT, FixedRetriever, by_task
from fake_openai import FakeOpenAI
from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from tiny_models import save_cross_encoder

from hopgate import Context, build_graph
from hopgate.retrievers import rerank
from hopgate.retrievers.base import Hit
from hopgate.retrievers.rerank import Reranked, load_reranker


class Backwards(BaseDocumentCompressor):
    """Keeps all but the first, in reverse."""

    scored: bool = False

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        assert query == QUERY
        known = [{"relevance_score": number} if self.scored else {} for number in range(9)]
        kept = [
            Document(each.page_content.upper(), metadata=each.metadata | score)
            for each, score in zip(documents, known, strict=False)
        ]
        return kept[:0:-1]


def test_a_document_compressor_orders_and_drops_hits() -> None:
    found = Reranked(FixedRetriever([LIGHT, CORRANE, FERRY]), Backwards()).search([QUERY], 5)
    assert found == [[FERRY | {"score": 1.0}, CORRANE | {"score": 0.5}]]
    found = Reranked(FixedRetriever([LIGHT, FERRY]), Backwards(scored=True)).search([QUERY], 5)
    assert found == [[FERRY | {"score": 1.0}]]
    assert Reranked(FixedRetriever([]), Backwards()).search([QUERY], 5) == [[]]
    with pytest.raises(ValueError, match=r"reranker is a str: use load_reranker\(…\), or a Lang"):
        Reranked(FixedRetriever([]), "cohere")  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [True, False])
async def test_a_graph_reranks_with_a_compressor(fake: FakeOpenAI, own: bool) -> None:
    fake.answers(by_task(answer="Lissmere [1]"))
    retriever = FixedRetriever([LIGHT, CORRANE, FERRY]) if own else None
    graph = build_graph(retriever=retriever, reranker=Backwards())
    context = Context(strategy="single", top_k=2, gate="always")
    result = await graph.ainvoke({"question": QUERY}, context=context)
    plain = await build_graph(retriever=retriever).ainvoke({"question": QUERY}, context=context)
    (hop,), (other,) = result["hops"], plain["hops"]
    assert hop["passage_ids"] != other["passage_ids"]
    if own:
        assert hop["passage_ids"] == [FERRY["id"], CORRANE["id"]]


QUERY = "Who designed the lighthouse?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_cross_encoder(tmp_path_factory.mktemp("cross-encoder"))


def by_hand(folder: Path, hits: Sequence[Hit]) -> list[float]:
    """The logit of each pair, one at a time, through a sigmoid."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    for hit in hits:
        text = f"{hit['title']} {hit['text']}"
        pair = tokenizer(QUERY, text, truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            scores.append(float(torch.sigmoid(model(**pair).logits)[0, 0]))
    return scores


def test_candidates_are_ordered_by_the_cross_encoder(folder: Path) -> None:
    candidates = [LIGHT, CORRANE, FERRY]
    inner = FixedRetriever(candidates)
    (hits,) = Reranked(inner, load_reranker(str(folder))).search([QUERY], k=2)
    expected = by_hand(folder, candidates)
    best = np.argsort(expected)[::-1][:2]
    assert [hit["id"] for hit in hits] == [candidates[i]["id"] for i in best]
    assert [hit["score"] for hit in hits] == pytest.approx([expected[i] for i in best], abs=1e-5)
    assert all(type(hit["score"]) is float for hit in hits)
    assert candidates[0]["score"] == 0.5  # what the retriever gave is left as it was


def test_more_candidates_are_read_than_asked_for(folder: Path) -> None:
    asked: list[int] = []

    class Counting(FixedRetriever):
        def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            asked.append(k)
            return super().search(queries, k)

    reranked = Reranked(Counting([]), load_reranker(str(folder)))
    assert reranked.search([QUERY, QUERY], k=1) == [[], []]
    reranked.search([QUERY], k=50)
    assert asked == [rerank.CANDIDATES, 50]
    with pytest.raises(ValueError, match="k is 0"):
        reranked.search([QUERY], k=0)


def test_a_cross_encoder_is_loaded_again_when_its_files_change(
    folder: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "cross-encoder"))
    first = load_reranker(str(copy))
    assert load_reranker(str(copy)) is first
    (copy / "model.safetensors").unlink()  # some versions write into the file that `first` maps
    save_cross_encoder(copy, seed=4)
    again = load_reranker(str(copy))
    assert again is not first
    assert again.scores(QUERY, ["a text"]) != first.scores(QUERY, ["a text"])


def test_anything_but_a_cross_encoder_is_refused(tmp_path: Path) -> None:
    for name in ("no such thing", str(tmp_path / "gone")):
        with pytest.raises(ValueError, match="unknown cross-encoder"):
            load_reranker(name)
    with pytest.raises(ValueError, match=r"has no \.safetensors file"):
        load_reranker(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(RuntimeError, match="cannot be loaded"):
        load_reranker(str(tmp_path))
    several = save_cross_encoder(tmp_path / "several", labels=3)
    with pytest.raises(RuntimeError, match="returns 3 scores for a pair"):
        load_reranker(str(several))


def test_a_cross_encoder_of_the_hub_out_of_reach_is_named() -> None:
    with pytest.raises(RuntimeError, match="model nobody/here cannot be downloaded from the"):
        load_reranker("nobody/here")
