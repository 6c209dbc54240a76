"""The networks behind a router: the fast forward pass, MiniLM, weights that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import T5Config

from hopgate.classifiers import serving
from hopgate.classifiers.networks import (
    MiniLMNetwork,
    T5Network,
    minilm,
    network_from,
    padded,
    state_of,
)
from hopgate.classifiers.serving import ServedT5
from hopgate.common.minilm import minilm_folder


def small_t5(**settings: Any) -> T5Network:
    torch.manual_seed(0)
    sizes = dict(vocab_size=60, d_model=32, d_kv=16, d_ff=48, num_layers=3, num_heads=4)
    config = T5Config(**sizes | settings, decoder_start_token_id=0)
    network = T5Network(config).eval()
    for parameter in network.parameters():
        parameter.data.normal_(std=0.3)
    return network


@pytest.mark.parametrize(
    "settings",
    [
        {"feed_forward_proj": "relu"},
        {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 2},
        {"feed_forward_proj": "gelu", "num_decoder_layers": 1},
    ],
    ids=["t5", "t5-v1.1", "shipped"],
)
def test_served_t5_gives_what_transformers_gives(settings: dict[str, Any]) -> None:
    network = small_t5(**settings)
    tokens, mask = padded([[5, 9, 1], list(range(2, 50)), [7]])
    with torch.no_grad():
        expected = network.features(tokens, mask)
        served = ServedT5(network, half=True)(tokens, mask)
    assert (served - expected).norm() < 2e-3 * expected.norm()


@pytest.mark.parametrize("half", [True, False])
def test_served_t5_without_half_precision_is_exact(
    half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if half:
        monkeypatch.setattr(serving, "_has_half_precision", lambda weight: False)
    network = small_t5(feed_forward_proj="gated-gelu", num_decoder_layers=2)
    tokens, mask = padded([[5, 9, 1], list(range(2, 50)), [7]])
    with torch.no_grad():
        expected = network.features(tokens, mask)
        served = ServedT5(network, half)(tokens, mask)
        torch.testing.assert_close(served, expected, atol=2e-5, rtol=1e-4)


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
        (lambda state: state.update(extra=torch.zeros(1)), "unknown .*extra"),
        (lambda state: state.update({"head.bias": torch.zeros(4)}), "size mismatch"),
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
    network = small_t5()
    network.tune(1)
    tuned = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert "head.weight" in tuned
    assert not any("shared" in name or "encoder.block.1" in name for name in tuned)
    assert any("encoder.block.2" in name for name in tuned)
    assert any("decoder.block.0" in name for name in tuned)


def test_minilm_reads_as_sentence_transformers_does() -> None:
    from sentence_transformers import SentenceTransformer

    network, tokenizer = minilm(seed=0)
    assert isinstance(network, MiniLMNetwork)
    questions = ["Who wrote it?", "Which of the two rivers is longer, and where does it end?"]
    pooled: list[torch.Tensor] = []
    network.hidden.register_forward_pre_hook(lambda _, args: pooled.append(args[0]))
    with torch.no_grad():
        network.features(*padded([found.ids for found in tokenizer.encode_batch(questions)]))
    expected = SentenceTransformer(str(minilm_folder()), device="cpu").encode(questions)
    torch.testing.assert_close(pooled[0], torch.tensor(expected), atol=1e-5, rtol=0)
    network.tune(None)
    trained = {n.split(".")[0] for n, p in network.named_parameters() if p.requires_grad}
    assert trained == {"hidden", "head"}
