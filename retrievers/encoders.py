"""Sentence encoders, which turn queries and passages into vectors.

`minilm` is embedded. A folder or a model of the hub runs on ONNX Runtime if it has an ONNX graph,
else through sentence-transformers, without remote code. `PROVIDER:NAME` is any embeddings of
LangChain's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from hopgate.common import minilm
from hopgate.common.cache import Cache
from hopgate.common.errors import require
from hopgate.retrievers.base import Passage
from hopgate.retrievers.encoding.hub import (
    HUB_ID,
    HUB_NAMES,
    cached_snapshot,
    download,
    graph_of,
    weights_of,
)
from hopgate.retrievers.encoding.onnx_models import MiniLM, OnnxFolder

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from numpy.typing import NDArray

DEFAULT_ENCODER = "minilm"
PASSAGES_AT_ONCE = 128
"""Passages that a build encodes and saves at a time: the most that a killed build loses."""

_FAMILIES = {r"intfloat/(multilingual-)?e5-(?!.*instruct)": ("query: ", "passage: ")}
"""Prefixes of models that do not define their own; E5's are from its model cards."""
_PROVIDER = re.compile(r"[A-Za-z_]\w+:[^/\\]\S*")
TOLERANCE = 5e-3
"""How far a component of a vector may differ when the same passage is encoded again, relative to
the vector's length: batches, threads and processors round differently, bfloat16 most."""


@dataclass(frozen=True)
class EncoderSource:
    """The files of an encoder, found without loading them.

    Attributes:
        name: The name it was requested by.
        folder: Its files, in Contriever's or in sentence-transformers' layout; None for a
            provider's.
        fingerprint: SHA-256 of its weights, in hexadecimal; of the name for a provider's.
    """

    name: str
    folder: Path | None
    fingerprint: str


class Model(Protocol):
    """The network behind an encoder; its attributes are those of `Encoder`.

    Attributes:
        prompts: The prefixes that it comes with, for queries and for passages.
    """

    pooling: str
    normalize: bool
    max_tokens: int
    prompts: tuple[str, str]

    @property
    def dimension(self) -> int:
        """The length of the vectors."""

    def encode(self, texts: Sequence[str], prefix: str, queries: bool) -> NDArray[np.float32]:
        """Return vectors, [texts, dimension].

        Args:
            texts: At least one.
            prefix: Put before each text.
            queries: Whether they are queries, and not passages.
        """


class Encoder:
    """An encoder in memory, for use from any number of threads.

    Attributes:
        name: The name it was requested by.
        fingerprint: SHA-256 of its weights, in hexadecimal.
        dimension: Length of its vectors.
        pooling: How token vectors become one, for example `mean` (over unmasked tokens).
        normalize: Whether vectors have length 1. Contriever's do not: normalising them changes
            the ranking.
        max_tokens: Longer texts are cut here; 0 where only the provider knows it.
        batch: How many passages to encode at a time.
        query_prefix: Put before each query, such as E5's `query: `; often empty.
        passage_prefix: Put before each passage.
    """

    batch: int = PASSAGES_AT_ONCE

    def __init__(self, source: EncoderSource, model: Model) -> None:
        """Keep the network.

        The prefixes are the model's own (sentence-transformers' prompts `query` and `document` or
        `passage`), else those its family is known to need.
        """
        self._model = model
        self.name = source.name
        self.fingerprint = source.fingerprint
        self.dimension, self.pooling = model.dimension, model.pooling
        self.normalize, self.max_tokens = model.normalize, model.max_tokens
        self.batch = getattr(model, "batch", PASSAGES_AT_ONCE)
        family = [known for stem, known in _FAMILIES.items() if re.match(stem, source.name)]
        prompts = model.prompts if any(model.prompts) else next(iter(family), ("", ""))
        self.query_prefix, self.passage_prefix = prompts

    def with_prefixes(self, query: str | None = None, passage: str | None = None) -> Encoder:
        """Return this encoder with other prefixes; None keeps one, and the weights are shared."""
        wanted = (
            self.query_prefix if query is None else query,
            self.passage_prefix if passage is None else passage,
        )
        if wanted == (self.query_prefix, self.passage_prefix):
            return self
        other = copy(self)
        other.query_prefix, other.passage_prefix = wanted
        return other

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries.

        Returns:
            float32 vectors, shape (number of texts, `dimension`).
        """
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        return self._model.encode(texts, self.query_prefix, True)

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Encode passages as `title + " " + text`, as Contriever was trained.

        Args:
            passages: The passages to encode.

        Returns:
            float32 vectors, shape (number of passages, `dimension`).
        """
        if not passages:
            return np.empty((0, self.dimension), dtype=np.float32)
        texts = [passage_text(each) for each in passages]
        return self._model.encode(texts, self.passage_prefix, False)


def passage_text(passage: Passage) -> str:
    """Return the text that an encoder reads for a passage: title, a space, text."""
    return f"{passage['title']} {passage['text']}".strip()


AnyEncoder: TypeAlias = "str | Encoder | Embeddings | None"
"""An encoder by its name, loaded, or LangChain's; None for the index's own, or the default."""
_encoders: Cache[Encoder] = Cache()
_fingerprints: Cache[str] = Cache()


def load_encoder(
    name: str = DEFAULT_ENCODER,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    dimension: int | None = None,
) -> Encoder:
    """Load an encoder, once per process and again when its files change.

    Args:
        name: `minilm` (all-MiniLM-L6-v2, 384 dimensions, normalised, 256 tokens), `contriever`
            or `contriever-msmarco` (mean pooling, not normalised, 512 tokens), `multilingual`
            (multilingual-e5-small), a model id of the hub, a folder, or `PROVIDER:NAME` for
            LangChain's `init_embeddings`, such as `openai:text-embedding-3-small`. A folder with
            a modules.json is read as sentence-transformers reads it, any other as Contriever.
        query_prefix: Put before each query; None for the model's own.
        passage_prefix: Put before each passage; None for the model's own.
        dimension: The length of its vectors where that is known; else a provider is asked.

    Raises:
        ValueError: There is no such encoder.
        RuntimeError: Its files are missing or damaged, or cannot be downloaded; or the package or
            the key of its provider is missing.
    """
    source = resolve_encoder(name)
    if source.folder is None:
        encoder = _provided(source, dimension)
    else:
        files = model_files(source.folder)
        encoder = _encoders.get(name, lambda: Encoder(source, _load_model(source)), files)
    return encoder.with_prefixes(query_prefix, passage_prefix)


_given: dict[str, Embeddings] = {}
"""An app's own embeddings, by the names that manifests have."""


def as_encoder(given: AnyEncoder) -> str | Encoder | None:
    """Return an encoder, or its name, for one that may be an app's LangChain `Embeddings`.

    These are kept by the name of their class and their model, such as
    `OpenAIEmbeddings:text-embedding-3-small`, so that this process can open the indexes that were
    built with them. Of two with one name, the last is used for indexes that are not open yet.
    """
    if given is None or isinstance(given, str | Encoder):
        return given
    model = getattr(given, "model", None) or getattr(given, "model_name", None) or "own"
    name = f"{type(given).__name__}:{model}"
    _given[name] = given
    return name


def _provided(source: EncoderSource, dimension: int | None) -> Encoder:
    from hopgate.retrievers.encoding.provider import ProviderModel, init_model

    own, name = _given.get(source.name), source.name

    def load() -> Encoder:
        model = ProviderModel(name, own, dimension) if own else init_model(name, dimension)
        return Encoder(source, model)

    return _encoders.get((name, dimension, id(own)), load)


def resolve_encoder(name: str) -> EncoderSource:
    """Find an encoder's files and their fingerprint, without loading them.

    A model of the hub that is not on this machine yet is downloaded. Names and errors are those
    of `load_encoder`.
    """
    return find_encoder(name) or _source(name, download(_hub_repo(name)))


def find_encoder(name: str) -> EncoderSource | None:
    """Find an encoder on this machine, without using the network.

    Returns:
        Its files and fingerprint, or None for a model of the hub that is not on this machine.

    Raises:
        ValueError: There is no such encoder.
        RuntimeError: Its files are missing or damaged.
    """
    if name == DEFAULT_ENCODER:
        minilm.check_files()
        return EncoderSource(name, minilm.FOLDER, minilm.RELEASED_SHA256)
    if (folder := Path(name).expanduser()).is_dir():
        folder = folder.resolve()
        return _source(str(folder), folder)
    if _PROVIDER.fullmatch(name):
        return EncoderSource(name, None, hashlib.sha256(name.encode()).hexdigest())
    cached = cached_snapshot(_hub_repo(name))
    return _source(name, cached) if cached else None


def _hub_repo(name: str) -> str:
    if name in HUB_NAMES or HUB_ID.fullmatch(name):
        return HUB_NAMES.get(name, name)
    known = ", ".join([DEFAULT_ENCODER, *HUB_NAMES])
    raise ValueError(
        f"unknown encoder {name!r}: use {known}, a model id such as org/name, a folder, or "
        "PROVIDER:NAME such as openai:text-embedding-3-small"
    )


def _source(name: str, folder: Path) -> EncoderSource:
    files = weights_of(folder)
    if not files:
        raise ValueError(
            f"encoder folder {folder} has neither .safetensors files nor an ONNX graph "
            "(onnx/model.onnx): save its weights in one of these forms"
        )
    return EncoderSource(name, folder, _fingerprints.get(folder, lambda: _hash(files), files))


def _hash(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the content of all files, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as handle:
            hashlib.file_digest(handle, lambda: digest)
    return digest.hexdigest()


def model_files(folder: Path | None) -> list[Path]:
    """Return all files below a model's folder, by which a cache sees that it changed."""
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []


def differ(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which of two sets of vectors, row by row, differ by more than rounding."""
    apart = np.abs(vectors - others).max(axis=1) > TOLERANCE * np.linalg.norm(vectors, axis=1)
    return np.asarray(apart)


def _load_model(source: EncoderSource) -> Model:
    assert source.folder
    if source.name == DEFAULT_ENCODER:
        return MiniLM()
    if graph := graph_of(source.folder):
        return OnnxFolder(source.name, graph, source.folder)
    require(f"encoder {source.name}", "sentence_transformers")
    from hopgate.retrievers.encoding.sentence_models import SentenceModel

    return SentenceModel(source.name, source.folder)
