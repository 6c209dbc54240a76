"""Encoders, the retriever protocol and the adapter for LangChain, on real models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from tiny_models import save_contriever

from hopgate.retrievers import encoders
from hopgate.retrievers.base import Passage, make_passage, passage_id
from hopgate.retrievers.encoders import load_encoder, resolve_encoder
from hopgate.retrievers.langchain import LangChainRetriever, as_retriever

TEXTS = [
    "The lighthouse was lit in 1811.",
    "A much longer text about the keepers of the lighthouse, their families and their boats.",
    "Bread is baked before dawn.",
]


@pytest.fixture(scope="module")
def tiny_contriever(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with random weights, laid out as Contriever is on the hub."""
    return save_contriever(tmp_path_factory.mktemp("tiny-contriever"))


def masked_means(folder: Path, texts: list[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Contriever's vectors by hand, one text at a time: the mean of the last hidden state."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
    with torch.no_grad():
        batch = tokenizer(texts, padding=True, truncation=True, max_length=64, return_tensors="pt")
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return np.asarray((hidden * mask).sum(1) / mask.sum(1), dtype=np.float32)


def test_no_queries_give_no_vectors() -> None:
    assert load_encoder().encode_queries([]).shape == (0, 384)


def test_contriever_is_the_masked_mean_and_is_not_normalised(tiny_contriever: Path) -> None:
    encoder = load_encoder(str(tiny_contriever))
    vectors = encoder.encode_queries(TEXTS)
    np.testing.assert_allclose(vectors, masked_means(tiny_contriever, TEXTS), atol=1e-5)
    assert not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-2)
    assert (encoder.dimension, encoder.pooling, encoder.normalize) == (32, "mean", False)
    assert encoder.max_tokens == 64
    passages = [make_passage("Skerry Light", text) for text in TEXTS]
    expected = masked_means(tiny_contriever, [f"Skerry Light {text}" for text in TEXTS])
    np.testing.assert_allclose(encoder.encode_passages(passages), expected, atol=1e-5)


def test_the_prefixes_of_a_model_are_its_own_those_of_its_family_or_those_asked_for(
    tiny_contriever: Path, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    from hopgate.retrievers.encoding.sentence_models import SentenceModel

    plain = load_encoder(str(tiny_contriever))
    assert (plain.query_prefix, plain.passage_prefix) == ("", "")
    model = SentenceTransformer(modules=list(SentenceModel("tiny", tiny_contriever).model))
    model.prompts = {"query": "search: ", "passage": "doc: "}
    model.save(str(tmp_path / "prompted"))
    own = load_encoder(str(tmp_path / "prompted"))
    assert (own.query_prefix, own.passage_prefix) == ("search: ", "doc: ")
    wanted = plain.encode_queries([f"search: {text}" for text in TEXTS])
    np.testing.assert_allclose(own.encode_queries(TEXTS), wanted, atol=1e-6)
    wanted = plain.encode_queries([f"doc: {text}" for text in TEXTS])
    found = own.encode_passages([make_passage("", text) for text in TEXTS])
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    other = load_encoder(str(tmp_path / "prompted"), passage_prefix="")
    assert (other.query_prefix, other.passage_prefix) == ("search: ", "")
    source = resolve_encoder(str(tiny_contriever))
    for name, prefixes in (
        ("intfloat/e5-small-v2", ("query: ", "passage: ")),
        ("intfloat/multilingual-e5-large-instruct", ("", "")),
    ):
        family = encoders.Encoder(replace(source, name=name), encoders.MiniLM())
        assert (family.query_prefix, family.passage_prefix) == prefixes


def test_a_text_over_the_limit_is_cut(tiny_contriever: Path) -> None:
    encoder = load_encoder(str(tiny_contriever))
    long, longer = encoder.encode_queries(["word " * 100, "word " * 20_000])
    np.testing.assert_allclose(long, longer, atol=1e-6)


def test_an_encoder_is_loaded_again_when_its_files_change(
    tiny_contriever: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_contriever, tmp_path / "encoder"))
    first = load_encoder(str(copy))
    assert load_encoder(str(copy)) is first
    (copy / "model.safetensors").unlink()  # some versions write into the file that `first` maps
    save_contriever(copy, seed=4)
    again = load_encoder(str(copy))
    assert again is not first
    assert again.fingerprint != first.fingerprint
    assert not np.allclose(again.encode_queries(TEXTS), first.encode_queries(TEXTS), atol=1e-3)


def test_loading_an_encoder_writes_nothing_on_the_terminal(
    tiny_contriever: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("minilm", str(tiny_contriever)):
        encoders._load_model(resolve_encoder(name))
    assert capfd.readouterr() == ("", "")


def test_an_unknown_encoder_is_named() -> None:
    with pytest.raises(ValueError, match="unknown encoder 'bert': use minilm, contriever"):
        load_encoder("bert")


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match=r"has neither \.safetensors files nor an ONNX graph"):
        load_encoder(str(tmp_path))


def test_a_damaged_encoder_folder_is_named(tiny_contriever: Path, tmp_path: Path) -> None:
    for file in tiny_contriever.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(RuntimeError, match=f"{tmp_path} cannot be loaded"):
        load_encoder(str(tmp_path))


class FakeHub(BaseHTTPRequestHandler):
    """A model hub that knows one model, published as a pickle, with a converted pull request."""

    files: dict[str, bytes]
    requests: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.requests.append(path)
        base, name = "facebook/contriever", path.rsplit("/", 1)[1]
        converted = "refs/pr/1" in path
        names = [*self.files] if converted else ["config.json", "pytorch_model.bin"]
        body: Any = {
            "id": base,
            "sha": ("2" if converted else "1") * 40,
            "siblings": [{"rfilename": each} for each in names],
        }
        if path.startswith(f"/{base}/resolve/"):
            body = self.files[name]
        elif path.endswith("/discussions"):
            change = {
                "title": "Adding `safetensors` variant of this model",
                "num": 1,
                "author": {"name": "SFconvertbot"},
                "isPullRequest": True,
                "status": "open",
                "createdAt": "2023-01-01T00:00:00.000Z",
                "repo": {"name": base, "type": "model"},
            }
            body = {"discussions": [change], "count": 1, "start": 0}
        elif "/tree/" in path:
            sizes = {each: len(content) for each, content in self.files.items()}
            body = [
                {"type": "file", "path": n, "size": size, "oid": n} for n, size in sizes.items()
            ]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{name}"')
        self.send_header("X-Repo-Commit", "2" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fake_hub(tiny_contriever: Path) -> Iterator[str]:
    FakeHub.files = {file.name: file.read_bytes() for file in tiny_contriever.iterdir()}
    FakeHub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def resolve_apart(name: str, cache: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    """Resolve an encoder in a process of its own: the hub's client reads its settings at import."""
    code = (
        "import sys; from hopgate.retrievers.encoders import resolve_encoder\n"
        f"print(resolve_encoder({name!r}).fingerprint, 'torch' in sys.modules)"
    )
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_hub_model_comes_as_safetensors_once_and_then_from_this_machine(
    fake_hub: str, tiny_contriever: Path, tmp_path: Path
) -> None:
    expected = f"{resolve_encoder(str(tiny_contriever)).fingerprint} False\n"
    first = resolve_apart("contriever", tmp_path, fake_hub)
    assert first.stdout == expected, first.stderr
    assert not any("pytorch_model.bin" in path for path in FakeHub.requests)
    FakeHub.requests.clear()
    second = resolve_apart("contriever", tmp_path, fake_hub)
    assert second.stdout == expected, second.stderr
    assert FakeHub.requests == []


def test_an_unreachable_hub_is_one_clear_line(tmp_path: Path) -> None:
    done = resolve_apart("contriever-msmarco", tmp_path, "http://127.0.0.1:9")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: encoder facebook/contriever-msmarco cannot be downloaded")
    assert last.endswith("or use the embedded minilm")


SEARCH_WITHOUT_TORCH = """
import json, sys
import numpy
import hopgate.retrievers
from hopgate.retrievers import encoders, sources

def loaded(*names):
    return [name for name in names if name in sys.modules]

print(loaded("torch", "transformers", "sentence_transformers", "faiss", "langchain_core"))

class Constant(encoders.Encoder):  # in place of the embedded one, which takes seconds to load
    def __init__(self, *loaded):
        manifest = json.loads((sources.sample_path() / "manifest.json").read_text())
        vars(self).update(manifest["encoder"])

    def encode_queries(self, texts):
        return numpy.ones((len(texts), self.dimension), dtype=numpy.float32)

encoders.Encoder = Constant
assert sources.open_source("sample").search(["Who drew the lighthouse?"], 1)[0]
print(loaded("hopgate.retrievers.building", "hopgate.retrievers.documents",
             "hopgate.retrievers.rerank", "hopgate.retrievers.web"))
print(loaded("filelock", "html_to_markdown", "mammoth",
             "pypdf", "langchain_text_splitters"))
"""


def test_importing_and_searching_load_only_what_they_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEARCH_WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]"] * 3


def test_an_id_is_the_content() -> None:
    assert passage_id("a", "b") == make_passage(" a ", "b\n", "elsewhere.txt", page=3)["id"]
    assert passage_id("a", "b") != passage_id("ab", "")
    assert len(passage_id("a", "b")) == 16


class MiniLMEmbeddings(Embeddings):
    """The embedded encoder as LangChain's own interface wants it."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        passages: list[Passage] = [make_passage("", text) for text in texts]
        return [[float(x) for x in row] for row in load_encoder().encode_passages(passages)]

    def embed_query(self, text: str) -> list[float]:
        return [float(x) for x in load_encoder().encode_queries([text])[0]]


def test_a_vector_store_serves_as_a_retriever() -> None:
    store = InMemoryVectorStore(MiniLMEmbeddings())
    store.add_documents(
        [
            Document(page_content=text, metadata={"title": f"T{i}", "n": np.float32(i)}, id=f"d{i}")
            for i, text in enumerate(TEXTS)
        ]
    )
    (baker,), (keeper,) = LangChainRetriever(store).search(["baking bread", "lit in 1811"], k=1)
    assert (baker["id"], baker["title"], baker["text"]) == ("d2", "T2", TEXTS[2])
    assert keeper["id"] == "d0"
    assert type(baker["score"]) is float
    assert baker.keys() == {"id", "title", "text", "score", "metadata"}
    assert baker["metadata"] == {"n": 2.0}


class FixedRetriever(BaseRetriever):
    """A retriever that always gives the same documents."""

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(page_content=text, metadata={"source": "book.txt"}) for text in TEXTS]


def test_a_langchain_retriever_serves_with_scores_by_rank() -> None:
    (hits,) = LangChainRetriever(FixedRetriever()).search(["anything"], k=2)
    assert [hit["text"] for hit in hits] == TEXTS[:2]
    assert [hit["score"] for hit in hits] == [1.0, 0.5]
    assert hits[0]["title"] == "book.txt"
    assert hits[0]["id"] == passage_id("book.txt", TEXTS[0])


def test_the_adapter_refuses_what_it_cannot_search() -> None:
    with pytest.raises(ValueError, match="retriever is a dict: use a LangChain VectorStore"):
        as_retriever({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k is 0"):
        LangChainRetriever(FixedRetriever()).search(["anything"], k=0)
