"""Models that run through sentence-transformers, from safetensors files and without remote code.

Importing this module imports torch; it needs the extra `train`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from sentence_transformers import CrossEncoder, SentenceTransformer
from transformers.utils import logging

from hopgate.common.errors import reason

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BATCH = 32


class SentenceModel:
    """An encoder's network, on a GPU if there is one; one call runs at a time.

    Its attributes and methods are those of `hopgate.retrievers.encoders.Model`.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """Load a folder as sentence-transformers does, or as Contriever without a modules.json.

        Raises:
            RuntimeError: The files are not those of an encoder.
        """
        with _loading(f"encoder {name} in {folder}"):
            self.model = _load(folder)
        self._lock = Lock()
        self.dimension = int(self.model.get_embedding_dimension() or 0)
        self.pooling = _pooling(self.model)
        self.normalize = any(type(each).__name__ == "Normalize" for each in self.model)
        self.max_tokens = int(self.model.max_seq_length or 0)
        known = self.model.prompts
        own = [known.get(key) or "" for key in ("query", "document", "passage", "corpus")]
        self.prompts = own[0], next(filter(None, own[1:]), "")

    def encode(self, texts: Sequence[str], prefix: str, queries: bool) -> NDArray[np.float32]:
        """Return vectors, [texts, dimension]."""
        encode = self.model.encode_query if queries else self.model.encode_document
        with self._lock:
            found: NDArray[np.float32] = encode(
                list(texts), prompt=prefix, batch_size=_BATCH, show_progress_bar=False
            )
        return found


def _load(folder: Path) -> SentenceTransformer:
    """Load a folder; without a modules.json, as Contriever: the mean over unmasked tokens."""
    options = {"use_safetensors": True}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not (folder / "modules.json").exists() and config["model_type"] == "bert":
        options["add_pooling_layer"] = False  # BERT's own pooler: unused, not in the checkpoint
    return SentenceTransformer(str(folder), local_files_only=True, model_kwargs=options)


def load_cross_encoder(name: str, folder: Path) -> CrossEncoder:
    """Load a cross-encoder.

    Raises:
        RuntimeError: The files are not those of a cross-encoder.
    """
    with _loading(f"cross-encoder {name} in {folder}"):
        model: CrossEncoder = CrossEncoder(
            str(folder), local_files_only=True, model_kwargs={"use_safetensors": True}
        )
    return model


def _pooling(model: SentenceTransformer) -> str:
    for module in model:
        mode = getattr(module, "pooling_mode", None)
        if mode:
            return mode if isinstance(mode, str) else "+".join(mode)
    return "none"


@contextmanager
def _loading(what: str) -> Iterator[None]:
    """Hide the progress bar of transformers while weights are loaded, and name them in errors."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    except Exception as error:  # torch, safetensors and tokenizers share no base class
        raise RuntimeError(f"{what} cannot be loaded: {reason(error, 300)}") from error
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
