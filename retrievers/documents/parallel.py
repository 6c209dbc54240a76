"""Encoding passages by workers, with the results in the order given."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common.workers import Piece, Workers
from hopgate.retrievers.base import Passage
from hopgate.retrievers.encoders import Encoder, load_encoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


def encode_with(
    workers: Workers, encoder: Encoder, batches: Iterable[list[Passage]]
) -> Iterator[tuple[list[Passage], Vectors]]:
    """Encode batches of passages; yield each with its vectors, in the order given.

    Args:
        workers: The workers. Each loads the encoder by its name.
        encoder: The encoder.
        batches: The passages, in batches that are encoded together.

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
        message: `encoder`: its identity; `passages`: their titles and texts.

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
