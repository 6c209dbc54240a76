"""The network behind a router: its state, weights that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import small_t5

from hopgate.classifiers.networks import network_from, padded
from hopgate.classifiers.training.bases import state_of


def test_network_is_rebuilt_from_its_state() -> None:
    network = small_t5()
    again = network_from("t5", network.t5.config.to_diff_dict(), state_of(network))
    tokens, mask = padded([[5, 9, 1], [7]])
    with torch.no_grad():
        assert torch.equal(
            again.head(again.features(tokens, mask)), network.head(network.features(tokens, mask))
        )
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
    with pytest.raises(ValueError, match=r"architecture is 'minilm'.*only trains 't5'"):
        network_from("minilm", {}, {})


def test_only_the_top_layers_are_tuned() -> None:
    network = small_t5(num_layers=3)
    network.tune(1)
    tuned = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert "head.weight" in tuned
    assert not any("shared" in name or "encoder.block.1" in name for name in tuned)
    assert any("encoder.block.2" in name for name in tuned)
    assert any("decoder.block.0" in name for name in tuned)
