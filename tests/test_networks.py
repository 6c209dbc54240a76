"""The networks behind a router: their state, MiniLM, weights that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import small_t5

from hopgate.classifiers.networks import MiniLMNetwork, T5Network, network_from, padded
from hopgate.classifiers.training.bases import minilm_network, state_of
from hopgate.retrievers.encoders import load_encoder


def test_network_is_rebuilt_from_its_state() -> None:
    network = small_t5()
    again = network_from("t5", network.t5.config.to_diff_dict(), state_of(network))
    tokens, mask = padded([[5, 9, 1], [7]])
    with torch.no_grad():
        assert torch.equal(
            again.head(again.features(tokens, mask)), network.head(network.features(tokens, mask))
        )
    assert isinstance(again, T5Network)
    assert again.t5.encoder.embed_tokens.weight is again.t5.shared.weight


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda state: state.pop("head.bias"), "missing .*head.bias"),
        (lambda state: state.update(extra=np.zeros(1)), "unknown .*extra"),
        (lambda state: state.update({"head.bias": np.zeros(4)}), "size mismatch"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_that_do_not_fit_are_refused(edit: Any, message: str) -> None:
    network = small_t5()
    state = state_of(network)
    edit(state)
    with pytest.raises(ValueError, match=message):
        network_from("t5", network.t5.config.to_diff_dict(), state)


def test_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="architecture is 'lstm'"):
        network_from("lstm", {}, {})


def test_only_the_top_layers_are_tuned() -> None:
    network = small_t5(num_layers=3)
    network.tune(1)
    tuned = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert "head.weight" in tuned
    assert not any("shared" in name or "encoder.block.1" in name for name in tuned)
    assert any("encoder.block.2" in name for name in tuned)
    assert any("decoder.block.0" in name for name in tuned)


def test_minilm_reads_as_the_encoder_does() -> None:
    network, tokenizer = minilm_network(seed=0)
    assert isinstance(network, MiniLMNetwork)
    questions = ["Who wrote it?", "Which of the two rivers is longer, and where does it end?"]
    pooled: list[torch.Tensor] = []
    network.hidden.register_forward_pre_hook(lambda _, args: pooled.append(args[0]))
    with torch.no_grad():
        network.features(*padded([found.ids for found in tokenizer.encode_batch(questions)]))
    expected = torch.from_numpy(load_encoder("minilm").encode_queries(questions))
    torch.testing.assert_close(pooled[0], expected, atol=1e-4, rtol=0)
    network.tune(None)
    trained = {n.split(".")[0] for n, p in network.named_parameters() if p.requires_grad}
    assert trained == {"hidden", "head"}
