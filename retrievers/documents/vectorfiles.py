"""Vectors that were computed elsewhere, read a piece at a time with their passages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopgate.common.errors import reason
from hopgate.common.files import parse_object, shown
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.encoders import TOLERANCE, Encoder, differ

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

_ROWS = 4_096
_FIRST_CHECKED = 32
"""Passages of a file's first piece that are encoded again; of each other piece it is one."""


class VectorFile:
    """A .npy file of vectors, and the .jsonl file of the same name with a passage on each line.

    Attributes:
        path: The .npy file.
        rows: How many vectors it has.
    """

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            ValueError: A file is missing, damaged or of another kind.
        """
        self.path, self._texts = path, path.with_suffix(".jsonl")
        with _named(path):
            self._vectors = np.lib.format.open_memmap(path, mode="r")
            if self._vectors.ndim != 2 or self._vectors.dtype.kind != "f":
                raise ValueError("it must hold floats, [passages, dimension]")
            if not self._texts.is_file():
                raise ValueError(
                    f"{self._texts.name} is not beside it, with a passage on each line"
                )
        self.rows = len(self._vectors)

    def read(self) -> Iterator[tuple[list[Passage], Vectors]]:
        """Yield passages and their vectors, [passages, dimension].

        Raises:
            ValueError: A passage is malformed, has no vector, or one with NaN.
        """
        with _named(self.path), self._texts.open("rb") as file:
            lines = filter(bytes.strip, file)
            for done in range(0, self.rows, _ROWS):
                vectors = np.asarray(self._vectors[done : done + _ROWS], np.float32)
                if not np.isfinite(vectors).all():
                    raise ValueError(f"vectors after row {done} hold NaN or infinite values")
                numbered = enumerate(islice(lines, len(vectors)), start=done + 1)
                passages = [self._passage(line, number) for number, line in numbered]
                last = done + _ROWS >= self.rows
                if len(passages) < len(vectors) or (last and any(lines)):
                    raise ValueError(
                        f"it has {self.rows} vectors, and {self._texts.name} not as many passages"
                    )
                yield passages, vectors

    def _passage(self, line: bytes, number: int) -> Passage:
        row = parse_object(line)
        title, text = row.get("title") or "", row.get("text")
        if not isinstance(title, str) or not isinstance(text, str) or not text.strip():
            raise ValueError(
                f"row {number}: its title and text must be strings, the text not empty"
            )
        return make_passage(title, text, str(row.get("source") or self.path.name))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors, those of numpy too."""
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"--vectors {path}: {reason(error, 300)}") from error


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
