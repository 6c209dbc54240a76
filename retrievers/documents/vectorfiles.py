"""Files of passages that come with their vectors, read a piece at a time.

A .parquet file has columns `text`, `title` and a vector, as published for Wikipedia. A .npy file
has only vectors; the .jsonl file of the same name has a passage a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common.errors import reason, require
from hopgate.common.files import parse_object, shown
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.encoders import TOLERANCE, Encoder, differ

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]
    Rows = Iterator[tuple[Sequence[Mapping[str, Any]], NDArray[Any]]]

VECTOR_COLUMNS = ("vector", "emb", "embedding", "embeddings")
"""Names that the column of vectors may have."""
SOURCE_COLUMNS = ("source", "url")
"""Columns that name the document of a passage; without any, it is the file."""
_ROWS = 4_096
_FIRST_CHECKED = 32
"""Passages of a file's first piece that are encoded again; of each other piece it is one."""


class VectorFile:
    """A file of passages with their vectors.

    Attributes:
        path: The file.
        rows: How many it has.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            ValueError: It is missing, damaged, of another kind, or has no vectors or texts.
            RuntimeError: The extra `parquet` is missing.
        """
        self.path = path
        with _named(path):
            if not path.is_file():
                raise ValueError("it does not exist or is not a file")
            if path.suffix == ".parquet":
                require(f"--vectors {path}", "pyarrow", extra="parquet")
                self.rows, self._pieces = _open_parquet(path)
            elif path.suffix == ".npy":
                self.rows, self._pieces = _open_npy(path)
            else:
                raise ValueError("it is of an unknown kind: use .parquet or .npy")

    def read(self) -> Iterator[tuple[list[Passage], Vectors]]:
        """Yield passages and their vectors, [passages, dimension].

        Raises:
            ValueError: A row has no text or no vector; the message names it, from 1.
        """
        done = 0
        with _named(self.path):
            for rows, vectors in self._pieces():
                passages = [self._passage(row, done + at) for at, row in enumerate(rows, start=1)]
                if vectors.ndim != 2 or vectors.dtype.kind != "f":
                    raise ValueError("its vectors must be lists of numbers, all equally long")
                if not np.isfinite(vectors).all():
                    raise ValueError(f"vectors after row {done} hold NaN or infinite values")
                yield passages, vectors.astype(np.float32)
                done += len(rows)

    def _passage(self, row: Mapping[str, Any], number: int) -> Passage:
        title, text = row.get("title") or "", row.get("text")
        if not isinstance(title, str) or not isinstance(text, str) or not text.strip():
            raise ValueError(
                f"row {number}: its title and text must be strings, the text not empty"
            )
        named = (row[each] for each in SOURCE_COLUMNS if row.get(each))
        return make_passage(title, text, str(next(named, self.path.name)))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors, those of numpy and pyarrow too."""
    try:
        yield
    except (OSError, EOFError, TypeError, ValueError) as error:
        raise ValueError(f"--vectors {path}: {reason(error, 300)}") from error


def _open_parquet(path: Path) -> tuple[int, Callable[[], Rows]]:
    """Return how many rows a file has, and a function that reads them in pieces."""
    from pyarrow.parquet import ParquetFile

    file: Any = ParquetFile(path)
    names = file.schema_arrow.names
    vector = next((each for each in VECTOR_COLUMNS if each in names), "")
    if "text" not in names or not vector:
        raise ValueError(f"it needs a column text and one of {', '.join(VECTOR_COLUMNS)}")
    columns = [each for each in ("title", "text", vector, *SOURCE_COLUMNS) if each in names]

    def pieces() -> Rows:
        for batch in file.iter_batches(_ROWS, columns=columns):
            lists = batch.column(vector).to_numpy(zero_copy_only=False).tolist()
            yield batch.drop_columns([vector]).to_pylist(), np.array(lists, np.float32)

    return file.metadata.num_rows, pieces


def _open_npy(path: Path) -> tuple[int, Callable[[], Rows]]:
    """Return the same of a file of vectors with one of passages beside it."""
    found, texts = np.load(path, mmap_mode="r"), path.with_suffix(".jsonl")
    if not texts.is_file():
        raise ValueError(f"{texts.name} is not beside it, with a passage a line")

    def pieces() -> Rows:
        with texts.open("rb") as file:
            lines = filter(bytes.strip, file)
            for done in range(0, len(found), _ROWS):
                rows = [parse_object(line) for line in islice(lines, _ROWS)]
                vectors = found[done : done + _ROWS]
                if len(rows) < len(vectors) or (done + _ROWS >= len(found) and any(lines)):
                    raise ValueError(f"it has {len(found)} vectors, and {texts.name} not as many")
                yield rows, vectors

    return len(found), pieces


def checked_vectors(
    files: Sequence[VectorFile], encoder: Encoder, progress: Callable[[int, int], None]
) -> Iterator[tuple[list[Passage], Vectors]]:
    """Yield the contents of files, after checking that an encoder made their vectors.

    Every vector must have the encoder's dimension and, if it normalises, length 1. Some passages
    are encoded again.

    Args:
        files: The files.
        encoder: The encoder that should have made the vectors.
        progress: Called with the rows read and their total.

    Raises:
        ValueError: A row cannot be used, or the vectors come from elsewhere.
    """
    done, total = 0, sum(file.rows for file in files)
    progress(done, total)
    for file in files:
        sampled = _FIRST_CHECKED
        for passages, vectors in file.read():
            if why := _difference(passages, vectors, encoder, sampled):
                raise ValueError(
                    f"--vectors {file.path}: {why}: name the encoder that they come from with "
                    "--encoder"
                )
            yield passages, vectors
            sampled = 1
            done += len(passages)
            progress(done, total)


def _difference(
    passages: list[Passage], vectors: Vectors, encoder: Encoder, sampled: int
) -> str | None:
    """Return how vectors differ from those of an encoder, if they do."""
    dimension = vectors.shape[1]
    if dimension != encoder.dimension:
        return f"it has {dimension} dimensions, and encoder {encoder.name} {encoder.dimension}"
    lengths = np.linalg.norm(vectors, axis=1)
    if encoder.normalize and np.abs(lengths - 1).max() > 10 * TOLERANCE:
        return f"it has vectors whose length is not 1, as it is for encoder {encoder.name}"
    at = np.unique(np.linspace(0, len(passages) - 1, sampled).astype(int))
    apart = differ(encoder.encode_passages([passages[each] for each in at]), vectors[at])
    if not apart.any():
        return None
    return (
        f"{apart.sum()} of {len(at)} vectors differ from those that encoder {encoder.name} makes "
        f"of title and text, for example of {shown(passages[int(at[apart][0])]['text'])}"
    )
