"""Files of passages that come with their vectors, read a piece at a time.

A .parquet file has columns `text`, `title` and a vector, as published for Wikipedia. A .npy file
has only vectors; the .jsonl file of the same name has a passage a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        rows: How many it has.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            ValueError: It is missing, damaged, of another kind, or has no vectors or texts.
            RuntimeError: The extra `parquet` is missing.
        """
        self.path = path
        if not path.is_file():
            raise ValueError(f"--vectors {path} does not exist or is not a file")
        if path.suffix not in (".npy", ".parquet"):
            raise ValueError(f"--vectors {path} is of an unknown kind: use .parquet or .npy")
        if path.suffix == ".parquet":
            require(f"--vectors {path}", "pyarrow", extra="parquet")
        try:
            self._open()
        except (OSError, EOFError) as error:  # pyarrow's errors are ValueErrors
            raise self._wrong(reason(error, 200)) from error

    def _open(self) -> None:
        if self.path.suffix == ".parquet":
            from pyarrow.parquet import ParquetFile

            try:
                self._parquet: Any = ParquetFile(self.path)
            except ValueError as error:
                raise self._wrong(reason(error, 200)) from error
            self.rows: int = self._parquet.metadata.num_rows
            names = self._parquet.schema_arrow.names
            self._vector = next((each for each in VECTOR_COLUMNS if each in names), "")
            if "text" not in names or not self._vector:
                vector = ", ".join(VECTOR_COLUMNS)
                raise self._wrong(f"it needs a column text and one of {vector}")
            self._columns = [
                each for each in ("title", "text", self._vector, *SOURCE_COLUMNS) if each in names
            ]
        else:
            try:
                self._vectors = np.load(self.path, mmap_mode="r")
            except ValueError as error:
                raise self._wrong(reason(error, 200)) from error
            if self._vectors.ndim != 2 or self._vectors.dtype.kind != "f":
                raise self._wrong("it must hold floats of shape [passages, dimension]")
            self.rows = len(self._vectors)
            self._texts = self.path.with_suffix(".jsonl")
            if not self._texts.is_file():
                raise self._wrong(f"{self._texts.name} is not beside it, with a passage a line")

    def _wrong(self, why: str, row: int | None = None) -> ValueError:
        return ValueError(f"--vectors {self.path}{'' if row is None else f', row {row}'}: {why}")

    def read(self) -> Iterator[tuple[list[Passage], Vectors]]:
        """Yield passages and their vectors, [passages, dimension].

        Raises:
            ValueError: A row has no text or no vector; the message names it, from 1.
        """
        pieces = self._parquet_rows() if self.path.suffix == ".parquet" else self._npy_rows()
        done = 0
        for rows, vectors in pieces:
            passages = [self._passage(row, done + at) for at, row in enumerate(rows, start=1)]
            if not np.isfinite(vectors).all():
                raise self._wrong(f"vectors after row {done} hold NaN or infinite values")
            yield passages, vectors.astype(np.float32)
            done += len(rows)

    def _parquet_rows(self) -> Iterator[tuple[Sequence[Mapping[str, Any]], NDArray[Any]]]:
        for batch in self._parquet.iter_batches(_ROWS, columns=self._columns):
            column = batch.column(self._vector)
            try:
                vectors = np.array(column.to_numpy(zero_copy_only=False).tolist(), np.float32)
                vectors = vectors.reshape(len(batch), -1) if len(batch) else vectors
            except (ValueError, TypeError) as error:
                raise self._wrong(
                    f"column {self._vector} must hold lists of numbers, all equally long"
                ) from error
            yield batch.drop_columns([self._vector]).to_pylist(), vectors

    def _npy_rows(self) -> Iterator[tuple[Sequence[Mapping[str, Any]], NDArray[Any]]]:
        with self._texts.open("rb") as lines:
            for done in range(0, self.rows, _ROWS):
                vectors = self._vectors[done : done + _ROWS]
                rows = [self._row(line) for line in islice(lines, len(vectors))]
                if len(rows) < len(vectors):
                    raise self._wrong(
                        f"it has {self.rows} vectors, and {self._texts.name} only "
                        f"{done + len(rows)} passages"
                    )
                yield rows, vectors
            if next(lines, b"").strip():
                raise self._wrong(
                    f"it has {self.rows} vectors, and {self._texts.name} more passages"
                )

    def _row(self, line: bytes) -> dict[str, Any]:
        try:
            return parse_object(line)
        except ValueError as error:
            raise self._wrong(f"{self._texts.name}: {error}: {shown(line)}") from error

    def _passage(self, row: Mapping[str, Any], number: int) -> Passage:
        title, text = row.get("title") or "", row.get("text")
        if not isinstance(title, str) or not isinstance(text, str) or not text.strip():
            raise self._wrong("its title and text must be strings, the text not empty", number)
        named = (row[each] for each in SOURCE_COLUMNS if row.get(each))
        return make_passage(title, text, str(next(named, self.path.name)))


def checked_vectors(
    files: Sequence[VectorFile], encoder: Encoder, progress: Callable[[int, int], None]
) -> Iterator[tuple[list[Passage], Vectors]]:
    """Yield what files hold, after checks that their vectors are those of an encoder.

    Every vector must have the encoder's dimension and, if it normalises, length 1. Some passages
    are encoded again.

    Args:
        files: The files.
        encoder: What the vectors should come from.
        progress: Called with the rows read and their total.

    Raises:
        ValueError: A row cannot be used, or the vectors come from elsewhere.
    """
    done, total = 0, sum(file.rows for file in files)
    progress(done, total)
    for file in files:
        sampled = _FIRST_CHECKED
        for passages, vectors in file.read():
            _check(file.path, passages, vectors, encoder, sampled)
            yield passages, vectors
            sampled = 1
            done += len(passages)
            progress(done, total)


def _check(
    path: Path, passages: list[Passage], vectors: Vectors, encoder: Encoder, sampled: int
) -> None:
    name = f"encoder {encoder.name}"
    remedy = "name the encoder that they come from with --encoder"
    if vectors.shape[1] != encoder.dimension:
        raise ValueError(
            f"--vectors {path} has vectors of {vectors.shape[1]} dimensions, but those of {name} "
            f"have {encoder.dimension}: {remedy}"
        )
    lengths = np.linalg.norm(vectors, axis=1)
    if encoder.normalize and np.abs(lengths - 1).max() > 10 * TOLERANCE:
        raise ValueError(
            f"--vectors {path} has vectors whose length is not 1, but that of {name} is: {remedy}"
        )
    at = np.unique(np.linspace(0, len(passages) - 1, sampled).astype(int))
    again = encoder.encode_passages([passages[each] for each in at])
    apart = differ(again, vectors[at])
    if apart.any():
        text = passages[int(at[apart][0])]["text"]
        raise ValueError(
            f"--vectors {path}: {apart.sum()} of {len(at)} vectors are not those that {name} makes "
            f"of title and text, for example of {shown(text)}: {remedy}"
        )
