"""Sentence encoders, which turn queries and passages into vectors.

`minilm` is embedded and runs on ONNX Runtime; Contriever comes from the model hub or a folder, as
any other encoder does, and runs through sentence-transformers, without remote code.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hopgate.common import minilm
from hopgate.common.cache import Cache
from hopgate.common.errors import reason, require
from hopgate.retrievers.base import Passage

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from hopgate.common.onnx import Network

DEFAULT_ENCODER = "minilm"

HUB_NAMES = {
    "contriever": "facebook/contriever",
    "contriever-msmarco": "facebook/contriever-msmarco",
}
HUB_TIMEOUT_S = 10.0
"""Seconds to wait for the first reply of the model hub."""

_FAMILIES = {r"intfloat/(multilingual-)?e5-(?!.*instruct)": ("query: ", "passage: ")}
"""Prefixes of models that do not define their own; E5's are from its model cards."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.txt", "*.safetensors", "*.model"]
TOLERANCE = 1e-3
"""How far a component of a vector may differ when the same passage is encoded again, relative to
the vector's length: batches, threads and processors round differently."""
BatchProgress = Callable[[int], None]
"""Called with the texts encoded so far."""
EncodeProgress = Callable[[int, int], None]
"""Called with the passages encoded so far and their total."""


@dataclass(frozen=True)
class EncoderSource:
    """The files of an encoder, found without loading them.

    Attributes:
        name: The name it was requested by.
        folder: Its files, in Contriever's or in sentence-transformers' layout.
        fingerprint: SHA-256 of its weights, in hexadecimal.
    """

    name: str
    folder: Path
    fingerprint: str


class Model(Protocol):
    """The network behind an encoder; its attributes are those of `Encoder`.

    Attributes:
        prompts: The prefixes that it comes with, for queries and for passages.
    """

    dimension: int
    pooling: str
    normalize: bool
    max_tokens: int
    prompts: tuple[str, str]

    def encode(
        self, texts: Sequence[str], prefix: str, queries: bool, progress: BatchProgress | None
    ) -> NDArray[np.float32]:
        """Return vectors, [texts, dimension].

        Args:
            texts: At least one.
            prefix: Put before each text.
            queries: Whether they are queries, and not passages.
            progress: Called with the number of texts done.
        """


class MiniLM:
    """The embedded all-MiniLM-L6-v2."""

    dimension, pooling, normalize = minilm.DIMENSION, "mean", True
    max_tokens, prompts = minilm.MAX_TOKENS, ("", "")

    def __init__(self) -> None:
        """Load nothing yet: a search by words alone never needs it."""
        self._lock = Lock()
        self._loaded: tuple[Network, Tokenizer] | None = None

    def encode(
        self, texts: Sequence[str], prefix: str, queries: bool, progress: BatchProgress | None
    ) -> NDArray[np.float32]:
        """Return vectors, see `Model.encode`; loads the weights first.

        Raises:
            RuntimeError: A file is missing or was altered.
        """
        network, tokenizer = self._parts()
        given = [f"{prefix}{text}" for text in texts] if prefix else list(texts)
        return network.run([each.ids for each in tokenizer.encode_batch(given)], progress)

    def _parts(self) -> tuple[Network, Tokenizer]:
        from hopgate.common.onnx import Network

        with self._lock:
            if self._loaded is None:
                network = Network(minilm.GRAPH.read_bytes(), minilm.weights())
                self._loaded = network, minilm.tokenizer()
            return self._loaded


class Encoder:
    """An encoder in memory, for use from any number of threads.

    Attributes:
        name: The name it was requested by.
        fingerprint: SHA-256 of its weights, in hexadecimal.
        dimension: Length of its vectors.
        pooling: How token vectors become one, for example `mean` (over unmasked tokens).
        normalize: Whether vectors have length 1. Contriever's do not: normalising them changes
            the ranking.
        max_tokens: Longer texts are cut here.
        query_prefix: Put before each query, such as E5's `query: `; often empty.
        passage_prefix: Put before each passage.
    """

    def __init__(self, source: EncoderSource) -> None:
        """Load the weights.

        The prefixes are the model's own (sentence-transformers' prompts `query` and `document` or
        `passage`), else those its family is known to need.

        Raises:
            RuntimeError: The files are not those of an encoder, or the extra `train` is missing,
                which all but `minilm` need.
        """
        self._model = model = _load_model(source)
        self.name = source.name
        self.fingerprint = source.fingerprint
        self.dimension, self.pooling = model.dimension, model.pooling
        self.normalize, self.max_tokens = model.normalize, model.max_tokens
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
        return self._model.encode(texts, self.query_prefix, True, None)

    def encode_passages(
        self, passages: Sequence[Passage], progress: EncodeProgress | None = None
    ) -> NDArray[np.float32]:
        """Encode passages as `title + " " + text`, as Contriever was trained.

        Args:
            passages: The passages to encode.
            progress: Called after each batch with the passages done and their total.

        Returns:
            float32 vectors, shape (number of passages, `dimension`).
        """
        if not passages:
            return np.empty((0, self.dimension), dtype=np.float32)
        total = len(passages)
        report = (lambda done: progress(done, total)) if progress else None
        texts = [passage_text(each) for each in passages]
        return self._model.encode(texts, self.passage_prefix, False, report)


def passage_text(passage: Passage) -> str:
    """Return the text that an encoder reads for a passage: title, a space, text."""
    return f"{passage['title']} {passage['text']}".strip()


_encoders: Cache[Encoder] = Cache()
_fingerprints: Cache[str] = Cache()


def load_encoder(
    name: str = DEFAULT_ENCODER, query_prefix: str | None = None, passage_prefix: str | None = None
) -> Encoder:
    """Load an encoder, once per process and again when its files change.

    Args:
        name: `minilm` (all-MiniLM-L6-v2, 384 dimensions, normalised, 256 tokens), `contriever`
            or `contriever-msmarco` (mean pooling, not normalised, 512 tokens), a model id of the
            hub, or a folder. A folder with a modules.json is read as sentence-transformers
            reads it, any other as Contriever.
        query_prefix: Put before each query; None for the model's own.
        passage_prefix: Put before each passage; None for the model's own.

    Raises:
        ValueError: There is no such encoder.
        RuntimeError: Its files are missing or damaged, or cannot be downloaded.
    """
    source = resolve_encoder(name)
    encoder = _encoders.get(name, lambda: Encoder(source), model_files(source.folder))
    return encoder.with_prefixes(query_prefix, passage_prefix)


def resolve_encoder(name: str) -> EncoderSource:
    """Find an encoder's files and their fingerprint, without loading them.

    A model of the hub that is not on this machine yet is downloaded. Names and errors are those
    of `load_encoder`.
    """
    return find_encoder(name) or _source(name, _download(_hub_repo(name)))


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
    cached = _cached_snapshot(_hub_repo(name))
    return _source(name, cached) if cached else None


def _hub_repo(name: str) -> str:
    if name in HUB_NAMES or HUB_ID.fullmatch(name):
        return HUB_NAMES.get(name, name)
    known = ", ".join([DEFAULT_ENCODER, *HUB_NAMES])
    raise ValueError(
        f"unknown encoder {name!r}: use {known}, a model id such as org/name, or a folder"
    )


def _source(name: str, folder: Path) -> EncoderSource:
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        raise ValueError(
            f"encoder folder {folder} has no .safetensors file: save its weights as safetensors"
        )
    return EncoderSource(name, folder, _fingerprints.get(folder, lambda: _hash(files), files))


def _hash(files: Sequence[Path]) -> str:
    """Return the SHA-256 of the content of all files, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as handle:
            hashlib.file_digest(handle, lambda: digest)
    return digest.hexdigest()


def model_files(folder: Path) -> list[Path]:
    """Return all files below a model's folder, by which a cache sees that it changed."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _cached_snapshot(repo: str) -> Path | None:
    """Find the newest complete download, without using the network."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots"
    snapshots = sorted(cache.glob("*/"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    return next((folder for folder in snapshots if _is_complete(folder)), None)


def _is_complete(folder: Path) -> bool:
    tokenizer = (folder / "tokenizer.json").exists() or (folder / "vocab.txt").exists()
    return tokenizer and (folder / "config.json").exists() and any(folder.glob("*.safetensors"))


def hub_model(repo: str) -> Path:
    """Return the folder of any model of the hub, downloading it if needed.

    Raises:
        RuntimeError: The model cannot be downloaded.
    """
    return _cached_snapshot(repo) or _download(repo, "model")


def _download(repo: str, kind: str = "encoder") -> Path:
    from huggingface_hub import HfApi, snapshot_download

    embedded = f", or use the embedded {DEFAULT_ENCODER}" if kind == "encoder" else ""
    try:
        return Path(
            snapshot_download(
                repo,
                revision=_safetensors_revision(HfApi(), repo),
                allow_patterns=_HUB_FILES,
                etag_timeout=HUB_TIMEOUT_S,
            )
        )
    except Exception as error:  # the hub client's errors have no common base class
        raise RuntimeError(
            f"{kind} {repo} cannot be downloaded from the model hub ({reason(error, 300)}): check "
            f"the connection, use a local folder{embedded}"
        ) from error


def differ(vectors: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which of two sets of vectors, row by row, differ by more than rounding."""
    apart = np.abs(vectors - others).max(axis=1) > TOLERANCE * np.linalg.norm(vectors, axis=1)
    return np.asarray(apart)


def _safetensors_revision(api: HfApi, repo: str) -> str:
    """Find the revision with safetensors: the main one, or the hub's own conversion of it.

    facebook/contriever and others were published as pickles only; the hub's conversion bot
    offers the same weights as safetensors in a pull request, where transformers looks too.
    """
    info = api.model_info(repo, timeout=HUB_TIMEOUT_S)
    if any(file.rfilename.endswith(".safetensors") for file in info.siblings or []):
        return info.sha or "main"
    for change in api.get_repo_discussions(repo, author="SFconvertbot"):
        if change.is_pull_request and change.status == "open" and change.git_reference:
            return change.git_reference
    raise FileNotFoundError("no safetensors weights")


def _load_model(source: EncoderSource) -> Model:
    if source.name == DEFAULT_ENCODER:
        return MiniLM()
    require(f"encoder {source.name}", "sentence_transformers")
    from hopgate.retrievers.sentence_models import SentenceModel

    return SentenceModel(source.name, source.folder)
