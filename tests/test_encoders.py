"""Encoders without torch: ONNX graphs in a folder, and embeddings behind an API."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import TalkingModel
from embedding_server import KEY, EmbeddingServer, embedding_server
from langchain_core.embeddings import Embeddings
from tiny_models import save_contriever, save_graph

from hopgate import Context, build_graph
from hopgate.common.cache import Cache
from hopgate.common.onnx import check
from hopgate.retrievers import encoders
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import add_passages, build_from_passages
from hopgate.retrievers.encoders import load_encoder
from hopgate.retrievers.encoding.provider import EncoderDownError
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import load_index

NAME = "openai:minilm"
TEXTS = ["The ferry leaves at nine.", "Skerrane Light was first lit in 1858.", "Bread " * 40, "?"]
PASSAGES = [make_passage(f"Page {at}", f"{text} {at}") for at, text in enumerate(TEXTS * 3)]

POOLINGS = {
    "mean": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    "cls": {"pooling_mode": "cls"},
    "lasttoken": {"pooling_mode": "lasttoken"},
    "max": {"pooling_mode_max_tokens": True},
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, laid out as Contriever, with its ONNX graph."""
    folder = save_contriever(tmp_path_factory.mktemp("graph") / "model")
    save_graph(folder)
    return folder


def laid_out(folder: Path, pooling: dict[str, Any]) -> Path:
    """Add the files of sentence-transformers: a pooling, a normalisation and prompts."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    stem = "sentence_transformers.models."
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": stem + kind}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    prompts = {"prompts": {"query": "query: ", "document": "passage: "}}
    for name, content in {
        "modules.json": modules,
        "config_sentence_transformers.json": prompts,
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": 32, **pooling},
        "2_Normalize/config.json": {},
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("pooling", [None, *POOLINGS])
def test_a_folder_with_a_graph_gives_the_vectors_of_sentence_transformers(
    graph: Path, tmp_path: Path, pooling: str | None
) -> None:
    folder = Path(shutil.copytree(graph, tmp_path / "model"))
    if pooling:
        laid_out(folder, POOLINGS[pooling])
    on_onnx = load_encoder(str(folder))
    assert type(on_onnx._model).__name__ == "OnnxFolder"
    plain = Path(shutil.copytree(folder, tmp_path / "plain"))
    shutil.rmtree(plain / "onnx")
    through_torch = load_encoder(str(plain))
    assert type(through_torch._model).__name__ == "SentenceModel"
    for name in ("dimension", "pooling", "normalize", "max_tokens", "query_prefix", "fingerprint"):
        assert getattr(on_onnx, name) == getattr(through_torch, name), name
    for encode, given in (("encode_queries", TEXTS), ("encode_passages", PASSAGES)):
        found = getattr(on_onnx, encode)(given)
        assert np.abs(found - getattr(through_torch, encode)(given)).max() < 1e-4


def test_a_folder_with_only_a_graph_builds_and_searches_without_torch(
    graph: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(graph, tmp_path / "model"))
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    code = f"""
import sys
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import build_from_passages
from hopgate.retrievers.index.reader import load_index
out = {str(tmp_path / "index")!r}
build_from_passages([make_passage("a", "ferry"), make_passage("b", "bread")], out, {str(folder)!r})
assert load_index(out).search(["ferry"], 1, "dense")[0]
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pooling 'weightedmean'"),
        ("modules.json", [{"type": "x.Dense", "path": "2_Dense"}], "its module Dense"),
        ("config.json", [], "cannot be loaded"),
    ],
)
def test_a_configuration_that_hopgate_cannot_follow_is_named(
    graph: Path, tmp_path: Path, name: str, content: object, said: str
) -> None:
    folder = laid_out(Path(shutil.copytree(graph, tmp_path / "model")), POOLINGS["cls"])
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(RuntimeError, match=said):
        load_encoder(str(folder))


def test_a_graph_takes_weights_only_from_the_files_beside_it(graph: Path) -> None:
    import onnx as library

    model = library.load(str(graph / "onnx/model.onnx"))
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = library.TensorProto.EXTERNAL
    place = tensor.external_data.add(key="location", value="../secret")
    with pytest.raises(ValueError, match="takes a weight from elsewhere"):
        check(model.SerializeToString(), {}, {"model.onnx_data"})
    place.value = "model.onnx_data"
    check(model.SerializeToString(), {}, {"model.onnx_data"})


def test_bulk_passages_in_bfloat16_are_those_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skipped without OpenVINO or the instructions; its ratio is in benchmarks/encoding.py."""
    pytest.importorskip("openvino")
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)  # another test's
    monkeypatch.setattr(encoders, "_encoders", Cache())
    encoder = load_encoder("minilm")
    passages = [make_passage(f"{at}", f"{text} {at}") for at in range(12) for text in TEXTS]
    found = encoder.encode_passages(passages)
    network = encoder._model._loaded[0]  # type: ignore[attr-defined]
    if network._infer_in_bulk == network._infer:
        pytest.skip("the processor has no bfloat16")
    assert sys.modules["openvino_telemetry"] is None  # it would fork a process that reports use
    exact = encoder.encode_queries([f"{each['title']} {each['text']}" for each in passages])
    assert np.abs(found - exact).max() > 0
    assert (found * exact).sum(1).min() > 0.9995


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    with embedding_server() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setattr(encoders, "_encoders", Cache())
        yield server


def test_a_provider_builds_and_searches_and_is_named_without_its_key(
    provider: EmbeddingServer, tmp_path: Path
) -> None:
    build_from_passages(PASSAGES, tmp_path / "index", NAME)
    manifest = info(tmp_path / "index")
    assert (manifest["encoder"]["name"], manifest["encoder"]["dimension"]) == (NAME, 384)
    assert KEY not in (tmp_path / "index/manifest.json").read_text()
    ((hit,),) = load_index(tmp_path / "index").search(["When was the lighthouse lit?"], 1, "dense")
    assert "Skerrane" in hit["text"]
    before = len(provider.texts)
    add_passages([make_passage("New", "The bakery opens at six.")], tmp_path / "index")
    assert "New The bakery opens at six." in provider.texts[before:]
    assert not set(provider.texts[before:]) & {f"{p['title']} {p['text']}" for p in PASSAGES}


def test_a_build_waits_as_long_as_the_provider_says(
    provider: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    load_encoder(NAME).dimension  # noqa: B018
    provider.faults += [(429, {"retry-after": "0.01", "retry-after-ms": "10"})] * 4
    build_from_passages(PASSAGES, tmp_path / "index", NAME)
    assert 0.01 in waits
    assert not provider.faults


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "refused the key .401.: check its environment variable"), (404, "no such model")],
)
def test_a_refusal_says_what_to_do_and_repeats_no_key(
    provider: EmbeddingServer, tmp_path: Path, status: int, said: str
) -> None:
    provider.faults += [(status, {})] * 9
    with pytest.raises(EncoderDownError, match=said) as raised:
        build_from_passages(PASSAGES, tmp_path / "index", NAME)
    assert KEY not in str(raised.value)


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(RuntimeError, match="OPENAI_API_KEY"):
        load_encoder("openai:another")


@pytest.mark.parametrize("name", ["nobody:model", "huggingface:org/model"])
def test_a_provider_that_cannot_be_used_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"encoder '{name}'"):
        load_encoder(name)


def test_another_dimension_than_that_of_the_index_is_refused(
    provider: EmbeddingServer, tmp_path: Path
) -> None:
    build_from_passages(PASSAGES, tmp_path / "index", NAME)
    provider.dimension = 16
    with pytest.raises(ValueError, match=r"of \[16\] dimensions, not 384"):
        load_index(tmp_path / "index").search(["ferry"], 1, "dense")


async def test_while_the_provider_is_down_words_are_searched_with_a_warning(
    provider: EmbeddingServer, tmp_path: Path
) -> None:
    build_from_passages(PASSAGES, tmp_path / "index", NAME)
    app = build_graph(model=TalkingModel(say=lambda *_: "At nine [1]"))
    context = Context(index=str(tmp_path / "index"), mode="hybrid", strategy="single")
    provider.faults += [(500, {})] * 40
    result = await app.ainvoke({"question": "When does the ferry leave?"}, context=context)
    assert result["hops"][0]["passage_ids"]
    (warning,) = [each for each in result["decision"]["warnings"] if "by words" in each]
    assert NAME in warning


class Counting(Embeddings):
    """An app's own embeddings: the embedded encoder."""

    model = "counting"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return load_encoder("minilm").encode_queries(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


async def test_an_app_passes_its_own_embeddings(tmp_path: Path) -> None:
    own = Counting()
    build_from_passages(PASSAGES, tmp_path / "index", own)
    assert info(tmp_path / "index")["encoder"]["name"] == "Counting:counting"
    app = build_graph(model=TalkingModel(say=lambda *_: "At nine [1]"), encoder=own)
    context = Context(index=str(tmp_path / "index"), mode="dense", strategy="single")
    result = await app.ainvoke({"question": "When does the ferry leave?"}, context=context)
    assert PASSAGES[0]["id"] in result["hops"][0]["passage_ids"]
    assert "warnings" not in result["decision"] or not result["decision"]["warnings"]
    code = "import sys; from hopgate.retrievers.index.reader import load_index as load"
    code += f"; load({str(tmp_path / 'index')!r})"
    apart = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Counting:counting" in apart.stderr
    assert "encoder=" in apart.stderr


KILLED = """
import os, sys
from hopgate.retrievers import encoders
from hopgate.retrievers.encoding import provider
provider.BATCH = 4
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import build_from_passages
passages = [make_passage(f"Page {at}", f"text {at}") for at in range(12)]
def progress(stage, done, total):
    if len(sys.argv) > 2 and (stage, done) == ("encoding passages", 8):
        os.kill(os.getpid(), 9)
build_from_passages(passages, sys.argv[1], "openai:minilm", progress)
"""


def test_a_killed_build_pays_for_no_text_twice(provider: EmbeddingServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "index")]
    killed = subprocess.run([*command, "kill"], env=os.environ, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run(command, env=os.environ, check=True, timeout=120)
    paid = [text for text in provider.texts if text.startswith("Page")]
    assert sorted(paid) == sorted({f"Page {at} text {at}" for at in range(12)})
