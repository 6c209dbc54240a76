"""Encoders on ONNX Runtime: the embedded all-MiniLM-L6-v2, and folders with an ONNX graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common import minilm
from hopgate.common.errors import reason

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from hopgate.common.onnx import Network

    Vectors = NDArray[np.float32]

MOST_TOKENS = 512
"""Longest text where a model's files give no limit, as in Contriever's."""
BULK = 32
"""Passages from which a faster engine is worth its start, see `Network.run`."""


class OnnxModel:
    """An encoder's network and tokenizer, loaded at the first text.

    Its attributes and `encode` are those of `hopgate.retrievers.encoders.Model`.
    """

    dimension: int
    pooling: str
    normalize: bool
    max_tokens: int
    prompts: tuple[str, str]

    def __init__(self) -> None:
        """Load nothing yet: a search by words alone never needs it."""
        self._lock = Lock()
        self._loaded: tuple[Network, Tokenizer] | None = None

    def load(self) -> tuple[Network, Tokenizer]:
        """Load the network, whose output is one vector for each text, and the tokenizer."""
        raise NotImplementedError

    def encode(self, texts: Sequence[str], prefix: str, queries: bool) -> Vectors:
        """Return vectors, [texts, dimension].

        Raises:
            RuntimeError: A file is missing, was altered, or is not that of an encoder.
        """
        with self._lock:
            if self._loaded is None:
                self._loaded = self.load()
        network, tokenizer = self._loaded
        ids = [each.ids for each in tokenizer.encode_batch([f"{prefix}{text}" for text in texts])]
        return network.run(ids, bulk=not queries and len(ids) >= BULK)


class MiniLM(OnnxModel):
    """The embedded all-MiniLM-L6-v2."""

    dimension, pooling, normalize = minilm.DIMENSION, "mean", True
    max_tokens, prompts = minilm.MAX_TOKENS, ("", "")

    def load(self) -> tuple[Network, Tokenizer]:
        """Load the files that ship with hopgate."""
        from hopgate.common.onnx import Network

        return Network(minilm.GRAPH.read_bytes(), minilm.weights()), minilm.tokenizer()


class OnnxFolder(OnnxModel):
    """A folder with an ONNX graph of token vectors beside `tokenizer.json` and `config.json`.

    Pooling, prefixes, length and normalisation come from sentence-transformers' files; without a
    modules.json the mean of the token vectors is taken as it is, as Contriever's is.
    """

    def __init__(self, name: str, graph: Path, folder: Path) -> None:
        """Read the configuration.

        Raises:
            RuntimeError: The files are not those of an encoder that hopgate can run on ONNX.
        """
        super().__init__()
        self._name, self._graph, self._folder = name, graph, folder
        try:
            self._configure(_json(folder / "config.json"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unusable(error) from error

    def _configure(self, config: Any) -> None:
        folder = self._folder
        modules = _json(folder / "modules.json", [])
        kinds = {each["type"].rpartition(".")[2]: folder / each["path"] for each in modules}
        if others := kinds.keys() - {"Transformer", "Pooling", "Normalize"}:
            raise ValueError(
                f"its module {min(others)} needs sentence-transformers: remove the graph and "
                "install hopgate[train]"
            )
        pooling = _json(kinds["Pooling"] / "config.json") if kinds else {"pooling_mode": "mean"}
        lengths = [
            _json(folder / "sentence_bert_config.json", {}).get("max_seq_length"),
            _json(folder / "tokenizer_config.json", {}).get("model_max_length"),
            config.get("max_position_embeddings"),
            None if modules else MOST_TOKENS,
        ]
        prompts = _json(folder / "config_sentence_transformers.json", {}).get("prompts") or {}
        passages = (prompts.get(key) for key in ("document", "passage", "corpus"))
        self.dimension = int(config.get("hidden_size") or config["dim"])
        self.pooling = _pooling(pooling)
        self.normalize = "Normalize" in kinds
        self.max_tokens = int(lengths[0] or min(filter(None, lengths[1:]), default=MOST_TOKENS))
        self.prompts = prompts.get("query") or "", next(filter(None, passages), "")
        self._pad = int(config.get("pad_token_id") or 0)

    def load(self) -> tuple[Network, Tokenizer]:
        """Load the graph, once it has been checked, and the tokenizer."""
        from tokenizers import Tokenizer

        from hopgate.common.onnx import Network

        try:
            tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.enable_truncation(self.max_tokens)
            return Network(self._graph, pool=self._pooled, pad=self._pad), tokenizer
        except Exception as error:  # those of tokenizers have no common base class
            raise self._unusable(error) from error

    def _pooled(self, tokens: Vectors, mask: NDArray[np.int64]) -> Vectors:
        """Return one vector for each text, given its token vectors, [texts, tokens, dimension]."""
        if tokens.ndim != 3 or tokens.shape[2] != self.dimension:
            raise ValueError(f"its output has the shape {tokens.shape}, not one of token vectors")
        found = POOLINGS[self.pooling](tokens, mask[..., None].astype(np.float32))
        if self.normalize:
            found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return found

    def _unusable(self, error: Exception) -> RuntimeError:
        return RuntimeError(
            f"encoder {self._name} in {self._folder} cannot be loaded: {reason(error, 300)}"
        )


POOLINGS: dict[str, Callable[[Vectors, Vectors], Vectors]] = {
    "mean": lambda tokens, mask: (tokens * mask).sum(1) / np.maximum(mask.sum(1), 1e-9),
    "cls": lambda tokens, mask: tokens[:, 0],
    "max": lambda tokens, mask: np.where(mask > 0, tokens, -np.inf).max(1),
    "lasttoken": lambda tokens, mask: tokens[
        np.arange(len(tokens)), mask[..., 0].sum(1).astype(int) - 1
    ],
}
"""How token vectors become one, by sentence-transformers' names."""


def _pooling(config: dict[str, Any]) -> str:
    """Return the pooling that a configuration names, in the new form or the old.

    Raises:
        ValueError: It is another than `POOLINGS` has, or several.
    """
    flags = [key for key, on in config.items() if key.startswith(_OLD) and on is True]
    named = [key.removeprefix(_OLD).split("_tok")[0] for key in flags]
    mode = config.get("pooling_mode") or (named[0] if len(named) == 1 else named)
    if mode not in POOLINGS:
        raise ValueError(f"pooling {mode!r} is unknown: hopgate does {', '.join(POOLINGS)}")
    return str(mode)


_OLD = "pooling_mode_"  # pooling_mode_mean_tokens, pooling_mode_cls_token, …


def _json(file: Path, default: Any = None) -> Any:
    if default is not None and not file.exists():
        return default
    return json.loads(file.read_text(encoding="utf-8"))
