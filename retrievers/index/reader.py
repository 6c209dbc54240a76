"""An index on disk, opened for searching: vectors in FAISS, words and passages in Tantivy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_args

from hopgate.common.cache import Cache, file_stamp
from hopgate.common.errors import reason
from hopgate.common.files import shown
from hopgate.retrievers.base import Hit, check_k, encodable, with_score
from hopgate.retrievers.coverage import background_of
from hopgate.retrievers.encoders import (
    AnyEncoder,
    Encoder,
    EncoderSource,
    as_encoder,
    find_encoder,
    load_encoder,
    model_files,
    resolve_encoder,
)
from hopgate.retrievers.filters import Filter, Where, parse_where
from hopgate.retrievers.hybrid import CANDIDATES, Mode, code_depth, code_last, fuse
from hopgate.retrievers.index.manifest import (
    MANIFEST,
    VECTORS,
    WORDS,
    Built,
    EncoderInfo,
    Manifest,
    damaged,
    info,
)
from hopgate.retrievers.index.segments import Segments
from hopgate.retrievers.index.texts import UnreadableError, Words
from hopgate.retrievers.index.vectors import load_faiss

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings

Ranking = Sequence[tuple[int, float]]
"""Keys of passages with their scores, best first."""
_OPENING_TRIES = 10
"""How often an index is opened anew when a writer changed it just then."""


class Parts(NamedTuple):
    """The parts of an index, opened; all of it but the encoder."""

    manifest: Manifest
    words: Words
    vectors: Segments

    @classmethod
    def open(cls, folder: Path, manifest: Manifest) -> Parts:
        """Open the words and the vectors of an index.

        Raises:
            ValueError: They are damaged, or do not belong together.
        """
        files = [folder / name for name in manifest["files"] if name.startswith(f"{WORDS}/")]
        dead = folder / manifest["dead"] if manifest["dead"] else None
        dimension, passages = manifest["encoder"]["dimension"], manifest["passages"]
        try:
            words = Words(files, manifest["words"], manifest["language"])
            vectors = Segments(folder / VECTORS, manifest["segments"], dead, words.keys)
            if {part.exact.shape[1] for part in vectors.parts} != {dimension}:
                raise ValueError(f"its vectors do not have {dimension} dimensions")
            if not len(words) == len(vectors) == passages:
                raise ValueError(f"its vectors and its words are not of {passages} passages each")
        except OSError:  # of this machine, such as no folder for temporary files
            raise
        except Exception as error:  # a stranger's files can fail in any way
            raise damaged(folder, reason(error)) from error
        return cls(manifest, words, vectors)


class Index:
    """An index opened for searching, from any number of threads. Open one with `load_index`.

    It stays as it was when it was opened, whatever happens to the folder.

    Attributes:
        path: Its folder.
        manifest: See `info`.
        encoder: The encoder of its vectors, which encodes queries too.
    """

    def __init__(self, path: Path, parts: Parts, encoder: Encoder) -> None:
        """Keep parts that were opened and checked, see `Index.open`."""
        self.path, self.encoder = path, encoder
        self.manifest, self._words, self._vectors = parts

    @classmethod
    def open(cls, path: Path | str, encoder: AnyEncoder = None) -> Index:
        """Open an index as it is now, and load its encoder.

        Args:
            path: The folder of the index.
            encoder: The encoder to use in place of the one that the manifest names: by name,
                loaded, or LangChain `Embeddings`; it must be the same model.

        Raises:
            ValueError: The folder is missing, is not an index, is damaged, has another format
                version, or was built with another encoder.
            RuntimeError: FAISS or the encoder is missing.
        """
        folder = Path(path).expanduser()

        def look() -> Index:
            manifest = info(folder, hashed=True)
            load_faiss()
            loaded = matching_encoder(folder, manifest, encoder)
            return cls(folder, Parts.open(folder, manifest), loaded)

        return while_it_changes(folder, look)

    def __len__(self) -> int:
        """Count the passages."""
        return len(self._words)

    def search(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode | None = None,
        where: Where | Filter | None = None,
    ) -> list[list[Hit]]:
        """Find the best passages for each query.

        Args:
            queries: Search texts; each is cut at the encoder's `max_tokens`.
            k: Passages for each query, at least 1; more than there are gives all.
            mode: `dense` (the highest inner product of vectors), `bm25` (words in common) or
                `hybrid` (both, see `fuse`); None for the index's default.
            where: A filter that passages must match, see `parse_where`: `{"source": "a.pdf"}`.

        Returns:
            For each query, in order, its hits, best first.

        Raises:
            ValueError: `k` is below 1, `queries` is one text, or there is no such mode or field.
        """
        check_k(k)
        if isinstance(queries, str):
            raise ValueError("queries is a string: give a list of strings")
        queries, wanted = [encodable(query) for query in queries], parse_where(where)
        mode = mode or self.manifest["mode"]
        if mode not in get_args(Mode):
            raise ValueError(f"unknown mode {mode!r}: use {', '.join(get_args(Mode))}")
        rank = {"dense": self._dense, "bm25": self._bm25, "hybrid": self._hybrid}[mode]
        try:
            if not (code := self._code):
                return [self._hits(ranking, wanted) for ranking in rank(queries, k, wanted)]
            found = rank(queries, code_depth(k), wanted)
            ordered = (code_last(ranking, code.__contains__, k) for ranking in found)
            return [self._hits(ranking, wanted) for ranking in ordered]
        except UnreadableError as error:
            raise damaged(self.path, str(error)) from error

    @cached_property
    def _code(self) -> frozenset[int]:
        return frozenset(self._words.code().tolist())

    @property
    def background(self) -> Sequence[float]:
        """Scores of unrelated questions, see `retrievers.coverage`; empty if they say nothing."""
        return background_of(self.manifest)

    def _dense(self, queries: Sequence[str], k: int, wanted: Filter) -> Sequence[Ranking]:
        if not queries:
            return []
        return self._vectors.search(self.encoder.encode_queries(queries), k, wanted)

    def _bm25(self, queries: Sequence[str], k: int, wanted: Filter) -> Sequence[Ranking]:
        return [self._words.search(query, k, wanted) for query in queries]

    def _hybrid(self, queries: Sequence[str], k: int, wanted: Filter) -> Sequence[Ranking]:
        depth = max(k, CANDIDATES)
        weights = map(self._words.dense_weight, queries)
        dense, bm25 = self._dense(queries, depth, wanted), self._bm25(queries, depth, wanted)
        return [fuse(*each, k) for each in zip(dense, bm25, weights, strict=True)]

    def _hits(self, ranking: Ranking, wanted: Filter) -> list[Hit]:
        stored = self._words.read([key for key, _ in ranking])
        return [
            with_score(each.passage(key, wanted), score)
            for each, (key, score) in zip(stored, ranking, strict=True)
        ]


_Opened = TypeVar("_Opened")


def while_it_changes(folder: Path, look: Callable[[], _Opened]) -> _Opened:
    """Run `look`, and again whenever a writer replaced the version it was reading."""
    for _ in range(_OPENING_TRIES):
        before = file_stamp(folder / MANIFEST)
        try:
            return look()
        except (ValueError, OSError, RuntimeError):
            if file_stamp(folder / MANIFEST) == before:
                raise
    return look()


def check_index(path: Path | str) -> Manifest:
    """Check, without opening it, that an index could be opened here with its own encoder.

    Checked are the manifest, the files as in `Index.open` (again only when one of them changes),
    FAISS, and the fingerprint of the encoder.

    Returns:
        The manifest, as `info` does.

    Raises:
        ValueError: See `Index.open`.
        RuntimeError: FAISS or the encoder is missing or damaged.
    """
    folder = Path(path).expanduser().resolve()

    def check() -> Manifest:
        manifest = info(path, hashed=True)
        load_faiss()
        check_encoder(folder, manifest)
        return manifest

    return while_it_changes(folder, check)


def matching_encoder(folder: Path, manifest: Built, encoder: AnyEncoder) -> Encoder:
    """Load an encoder if it is the one that an index was built with.

    Raises:
        ValueError: It is another.
        RuntimeError: The one that the manifest names is not on this machine.
    """
    built_with, encoder = manifest["encoder"], as_encoder(encoder)
    if not isinstance(encoder, Encoder):
        source = resolve_encoder(encoder) if encoder else own_encoder(folder, manifest)
        _check_same(folder, manifest, source, ["fingerprint"])  # before it is loaded
        prefixes = built_with["query_prefix"], built_with["passage_prefix"]
        encoder = load_encoder(source.name, *prefixes, built_with["dimension"])
    _check_same(folder, manifest, encoder, EncoderInfo.__annotations__)
    return encoder


def _check_same(
    folder: Path, manifest: Built, encoder: Encoder | EncoderSource, keys: Iterable[str]
) -> None:
    for key in keys:
        expected, found = manifest["encoder"].get(key), getattr(encoder, key)
        if key != "name" and found != expected:
            raise ValueError(
                f"the index at {folder} was built with {key} {shown(expected)}, and encoder "
                f"{encoder.name} has {shown(found)}: use the encoder that it was built with, "
                f"{manifest['encoder']['name']}, or build it again"
            )


def own_encoder(folder: Path, manifest: Built) -> EncoderSource:
    """Find the encoder that a manifest names, without fetching anything.

    The manifest may be a stranger's: a model is downloaded, or read from beside the index, only
    when its user names it.

    Raises:
        ValueError: There is no such encoder, or it lies in the folder of the index.
        RuntimeError: It is not on this machine.
    """
    name = manifest["encoder"]["name"]
    path = Path(name)
    if path.is_dir() and (
        not path.is_absolute() or path.resolve().is_relative_to(folder.resolve())
    ):
        raise ValueError(
            f"the index at {folder} names the encoder {name!r}, a folder that may have come with "
            "it: build the index again with an encoder that you trust"
        )
    if source := find_encoder(name):
        return source
    fetch = f"index verify {folder} --encoder {name}"
    if not folder.is_dir():  # it is the name of a store
        fetch = f"search x --index {folder}@{name}"
    raise RuntimeError(
        f"the index at {folder} needs the encoder {name}, which is not on this machine: to "
        f"download it, run `hopgate {fetch}`"
    )


def check_encoder(folder: Path, manifest: Built) -> None:
    """Check that the encoder of an index is on this machine, without loading it.

    Raises:
        ValueError: It has other weights, or lies in the folder of the index.
        RuntimeError: It is missing.
    """
    _check_same(folder, manifest, own_encoder(folder, manifest), ["fingerprint"])


_indexes: Cache[Index] = Cache()


def load_index(path: Path | str, encoder: str | Embeddings | None = None) -> Index:
    """Open an index, once per process and again when the index or its encoder changes.

    Arguments and errors are those of `Index.open`.
    """
    folder, name = Path(path).expanduser().resolve(), as_encoder(encoder)
    assert not isinstance(name, Encoder)

    def look() -> Index:
        source = resolve_encoder(name) if name else own_encoder(folder, info(folder))
        files = [folder / MANIFEST, *model_files(source.folder)]
        return _indexes.get((folder, name), lambda: Index.open(folder, name), files)

    return while_it_changes(folder, look)
