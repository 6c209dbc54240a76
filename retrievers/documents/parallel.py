"""Reading files and encoding passages by workers, with the results in the order given.

Workers run `read_piece` and `encode_piece`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common.workers import OwnProcess, Piece, Workers
from hopgate.retrievers.base import Passage
from hopgate.retrievers.documents.finding import (
    FoundFiles,
    SkippedFile,
    Stamp,
    readable,
    stamp_of,
)
from hopgate.retrievers.documents.parsers import parsing_process
from hopgate.retrievers.documents.reading import (
    FilePassages,
    MissingExtraError,
    ReadProgress,
    ReadReport,
    read_file,
)
from hopgate.retrievers.documents.rows import ROWS
from hopgate.retrievers.encoders import Encoder, load_encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

_PIECE_FILES, _PIECE_BYTES = 32, 1 << 20
"""Most files that a worker reads at a time, and how large they are together, but for the last."""
MAX_SENT_BYTES = 16 << 20
"""Largest file whose content is sent to another machine; this one reads larger ones itself."""


# Reading


def read_with(
    workers: Workers, found: FoundFiles, report: ReadReport, progress: ReadProgress
) -> Iterator[FilePassages]:
    """Read files as `read_files` does, with the same results in the same order.

    .csv and .jsonl files are read in this process: they may be larger than memory, and cutting
    their rows takes little time beside encoding them.
    """
    report.skipped.extend(found.skipped)
    report.ignored.extend(found.ignored)
    total = len(found.files)
    sent = [_is_sent(file, workers) for file, _ in found.files]
    away = (each for each, is_sent in zip(found.files, sent, strict=True) if is_sent)
    pieces = _file_pieces(away, workers.share_files)
    replies = (
        reply
        for stamps, read in workers.map(f"{__name__}:read_piece", pieces)
        for reply in zip(stamps, read, strict=True)
    )
    with closing(parsing_process()) as parser:
        for at, (file, source) in enumerate(found.files):
            progress(at, total)
            if sent[at]:
                yield _file_passages(file, source, *next(replies), report)
            else:
                yield read_file(file, source, parser, report)
    progress(total, total)


def _is_sent(file: Path, workers: Workers) -> bool:
    """Return whether a worker reads a file; this process reports on those that nobody can read."""
    if file.suffix.lower() in ROWS or not os.access(file, os.R_OK):
        return False
    return workers.share_files or file.stat().st_size <= MAX_SENT_BYTES


def _file_pieces(
    files: Iterable[tuple[Path, str]], share_files: bool
) -> Iterator[Piece[list[Stamp | None]]]:
    """Yield groups of files for `read_piece`, each with the stamps of its files."""
    group: list[dict[str, Any]] = []
    stamps: list[Stamp | None] = []
    for file, source in files:
        stamps.append(stamp_of(file))
        group.append({"path": os.fsencode(file.absolute()), "source": source})
        if not share_files:
            group[-1]["content"] = _content(file)
        if len(group) == _PIECE_FILES or sum(each.size for each in stamps if each) > _PIECE_BYTES:
            yield Piece(f"reading {group[0]['source']} to {source}", group, stamps)
            group, stamps = [], []
    if group:
        yield Piece(f"reading {group[0]['source']} to {group[-1]['source']}", group, stamps)


def _content(file: Path) -> bytes:
    with suppress(OSError):  # it has vanished: it is reported as a file without text
        return file.read_bytes()
    return b""


def read_piece(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read some files, in a worker.

    Args:
        files: Each has `path`, `source`, and if the worker cannot read the path, its `content`.

    Returns:
        For each file its `passages`, the reasons for all that was `skipped`, and whether an extra
        is `missing`.
    """
    with closing(parsing_process()) as parser, TemporaryDirectory(prefix="hopgate-") as folder:
        return [_read_one(each, parser, Path(folder)) for each in files]


def _read_one(request: dict[str, Any], parser: OwnProcess, folder: Path) -> dict[str, Any]:
    file = Path(os.fsdecode(request["path"]))
    if "content" in request:
        file = folder / f"file{file.suffix}"
        file.write_bytes(request["content"])
    report = ReadReport()
    found = read_file(file, request["source"], parser, report)
    return {
        "passages": list(found.passages),
        "skipped": [each.reason for each in report.skipped],
        "missing": report.missing is not None,
    }


def _file_passages(
    file: Path, source: str, stamp: Stamp | None, reply: dict[str, Any], report: ReadReport
) -> FilePassages:
    skipped = [SkippedFile(readable(file), why) for why in reply["skipped"]]
    report.skipped.extend(skipped)
    if reply["missing"]:
        report.missing = MissingExtraError(skipped[0].reason)
    if reply["passages"]:
        report.files += 1
        return FilePassages(file, source, stamp, iter(reply["passages"]), None)
    return FilePassages(file, source, stamp, iter(()), skipped[0])


# Encoding


def encode_with(
    workers: Workers, encoder: Encoder, batches: Iterable[list[Passage]]
) -> Iterator[tuple[list[Passage], Vectors]]:
    """Encode batches of passages; yield each with its vectors, in the order given.

    Args:
        workers: Who encodes. Each loads the encoder by its name.
        encoder: The encoder.
        batches: What is encoded at a time.

    Raises:
        RuntimeError: A worker cannot load the encoder, or has another one under this name.
    """
    described = {
        "name": encoder.name,
        "query_prefix": encoder.query_prefix,
        "passage_prefix": encoder.passage_prefix,
        "fingerprint": encoder.fingerprint,
    }
    for passages, vectors in workers.map(
        f"{__name__}:encode_piece", _passage_pieces(described, batches)
    ):
        yield passages, np.frombuffer(vectors, np.float32).reshape(-1, encoder.dimension)


def _passage_pieces(
    described: dict[str, str], batches: Iterable[list[Passage]]
) -> Iterator[Piece[list[Passage]]]:
    done = 0
    for passages in batches:
        texts = [(each["title"], each["text"]) for each in passages]
        name = f"encoding passages {done + 1:,} to {done + len(passages):,}"
        yield Piece(name, {"encoder": described, "passages": texts}, passages)
        done += len(passages)


def encode_piece(message: dict[str, Any]) -> bytes:
    """Encode some passages, in a worker.

    Args:
        message: `encoder`: what identifies it; `passages`: their titles and texts.

    Returns:
        The bytes of float32 vectors, [passages, dimension].

    Raises:
        RuntimeError: The encoder of this name is another one here.
    """
    wanted = message["encoder"]
    encoder = load_encoder(wanted["name"], wanted["query_prefix"], wanted["passage_prefix"])
    if encoder.fingerprint != wanted["fingerprint"]:
        raise RuntimeError(
            f"encoder {encoder.name} has other weights on {socket.gethostname()} than where the "
            "build was started: install the same there"
        )
    texts = message["passages"]
    passages = [Passage(id="", title=title, text=text, source="") for title, text in texts]
    return encoder.encode_passages(passages).tobytes()
