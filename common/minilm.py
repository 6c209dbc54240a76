"""The embedded encoder, all-MiniLM-L6-v2: its graph, tokenizer and weights ship with hopgate.

The weights are rounded, so that they take 42 MB instead of 90: blocks of 64 values share a scale,
and a value is an integer of 16 bits, or of 13 in the word embeddings. Vectors differ from the
released model's by less than 1e-4. `tools/minilm.py` makes the files.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopgate.common.cache import Cache
from hopgate.common.files import sha256

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

FOLDER = Path(__file__).parent / "weights"
WEIGHTS, GRAPH = FOLDER / "minilm.safetensors", FOLDER / "minilm.onnx"
TOKENIZER, CONFIG = FOLDER / "tokenizer.json", FOLDER / "config.json"
RELEASED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors in the original release, by which an index knows its encoder."""
SHA256 = {
    "minilm.safetensors": "4e0b6db32bd0f0ace06426117ce3729ed36a948c037572c9b70753ff29cb055c",
    "minilm.onnx": "93a8e894aed17938b6b42518c4ce1f76d0cf6922c4ec199790775caa955687e6",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "config.json": "b3f8a888207311282d7d3f44fde4f7a4ab4bb88154d2dea3ade753803b54ee05",
}
"""SHA-256 of each file, by its name."""
DIMENSION = 384
MAX_TOKENS = 256
BLOCK = 64
"""Values that share a scale."""
LOW_BITS = 5
"""Bits of a word embedding's value below the upper eight."""

_hashes = Cache[str]()


def check_files() -> None:
    """Check that all files are there and as they were released.

    A file is hashed again only after it has changed.

    Raises:
        RuntimeError: A file is missing or was altered.
    """
    for path in (WEIGHTS, GRAPH, TOKENIZER, CONFIG):
        if not path.is_file():
            raise RuntimeError(f"{path} is missing; install hopgate again")
        if _hashes.get(path, partial(sha256, path), files=[path]) != SHA256[path.name]:
            raise RuntimeError(f"{path} was altered: its SHA-256 is wrong; install hopgate again")


def tokenizer() -> Tokenizer:
    """Return the tokenizer, which cuts at `MAX_TOKENS` and does not pad."""
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(TOKENIZER))
    found.no_padding()
    found.enable_truncation(MAX_TOKENS)
    return found


def weights() -> dict[str, NDArray[np.float32]]:
    """Return all weights by the names they have in transformers' BertModel.

    Raises:
        RuntimeError: See `check_files`.
    """
    from safetensors.numpy import load_file

    check_files()
    stored = load_file(WEIGHTS)
    found = {name: each for name, each in stored.items() if each.dtype == np.float32}
    for name in [name.removesuffix(".scale") for name in found if name.endswith(".scale")]:
        values = stored.get(name)
        if values is None:
            values = joined(*(stored[f"{name}.{part}"] for part in ("high", "nibbles", "bits")))
        scale = found.pop(f"{name}.scale")
        blocks = values.reshape(*scale.shape, BLOCK).astype(np.float32)
        found[name] = (blocks * scale[..., None]).reshape(values.shape)
    return found


def joined(
    high: NDArray[np.int8], nibbles: NDArray[np.uint8], bits: NDArray[np.uint8]
) -> NDArray[np.int16]:
    """Return 13-bit integers of shape [rows, columns], given their parts.

    Args:
        high: Their upper eight bits, [rows, columns].
        nibbles: The next four, [rows, columns / 2]: those of the left half of the columns in the
            lower half of each byte.
        bits: The last, [rows, columns / 8], as numpy packs them.
    """
    low = np.concatenate([nibbles & 15, nibbles >> 4], axis=1) << 1 | np.unpackbits(bits, axis=1)
    return high.astype(np.int16) << LOW_BITS | low
