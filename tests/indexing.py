"""Help for tests of indexes: an encoder without weights, and a writer that can be killed."""

import hashlib
import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopgate.retrievers import building, versions
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.building import add_passages
from hopgate.retrievers.encoders import EncodeProgress, Encoder, passage_text


class HashEncoder(Encoder):
    """Gives each text a vector of its own, drawn at random from its hash."""

    def __init__(self, dimension: int = 16) -> None:
        self.name, self.fingerprint, self.dimension = "hash", "0" * 64, dimension
        self.pooling, self.normalize, self.max_tokens = "none", False, 0
        self.query_prefix = self.passage_prefix = ""
        self.encoded = 0

    def __getattr__(self, name: str) -> Any:
        """Other things that an encoder is described by are not set."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([self._vector(text) for text in texts], dtype=np.float32)

    def encode_passages(
        self, passages: Sequence[Passage], progress: EncodeProgress | None = None
    ) -> NDArray[np.float32]:
        self.encoded += len(passages)
        return self.encode_queries([passage_text(passage) for passage in passages])

    def _vector(self, text: str) -> NDArray[np.float64]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=self.dimension)


def stamped(stamp: int, sources: int = 5) -> list[Passage]:
    """Passages of some documents, all of which name the same stamp."""
    return [
        make_passage(f"Doc {number}", f"stamp {stamp} of document {number}", f"{number}.txt")
        for number in range(sources)
    ]


MOMENTS = {
    "when passages are written": (building.PassageWriter, "put"),
    "when a batch is encoded": (building._Encoded, "rows"),
    "when vectors are indexed": (building, "write"),
    "when words are indexed": (building.Bm25, "build"),
    "before files are synced": (building.Writer, "publish"),
    "when files are synced": (versions, "_sync"),
    "before the manifest is replaced": (versions.os, "replace"),
}


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def keep_writing(index: Path, moment: str, stamps: Connection) -> None:
    """Change an index for ever, or until a moment at which the process dies."""
    if moment in MOMENTS:
        setattr(*MOMENTS[moment], die)
    encoder, stamp = HashEncoder(), 1
    while True:
        stamps.send(stamp)
        add_passages(stamped(stamp), index, encoder)
        stamp += 1


def start_writer(index: Path, moment: str = "never") -> tuple[ForkServerProcess, Connection]:
    """Run `keep_writing` in a process of its own, forked from one that has imported this module.

    Returns:
        The process, and the connection that receives the number of each change as it begins.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=keep_writing, args=(index, moment, sending), daemon=True)
    process.start()
    sending.close()
    return process, receiving
