"""A T5's forward for serving: what `T5Network.features` gives, in a third of the time.

One question is so little work that most of it is overhead: the norms are folded into the
projections behind them, q, k and v are one matrix, the position bias is computed once, and the
decoder, which sees one token, needs no self-attention. Training goes through `transformers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hopgate.classifiers.checkpoint import MAX_TOKENS
from hopgate.classifiers.networks import T5Network


class SelfAttention(NamedTuple):
    """Projections: q, k and v as one matrix, and back."""

    read: Tensor
    write: Tensor


class CrossAttention(NamedTuple):
    """Projections: q; k and v of the encoder's states as one matrix, and back."""

    query: Tensor
    read: Tensor
    write: Tensor


class ServedT5:
    """The features of a `T5Network`, whose weights must not change any more."""

    def __init__(self, network: T5Network) -> None:
        """Fuses the network's weights; those that nothing is fused with are shared with it."""
        t5: Any = network.t5
        self._heads = t5.config.num_heads
        self._eps = t5.config.layer_norm_epsilon
        self._embeddings = t5.shared.weight
        self._start = t5.config.decoder_start_token_id
        encoder, decoder = t5.encoder, t5.decoder
        self._bias = encoder.block[0].layer[0].SelfAttention.compute_bias(MAX_TOKENS, MAX_TOKENS)
        self._encoder = [
            (_self_attention(block.layer[0]), _feed_forward(block.layer[1]))
            for block in encoder.block
        ]
        self._decoder = [
            (
                _own_value(block.layer[0]),
                _cross_attention(block.layer[1], encoder),
                _feed_forward(block.layer[2]),
            )
            for block in decoder.block
        ]
        self._last_norm = decoder.final_layer_norm.weight

    def __call__(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """As `T5Network.features`."""
        width = tokens.shape[1]
        hidden_tokens = (1 - mask)[:, None, None, :] * torch.finfo(self._bias.dtype).min
        bias = self._bias[:, :, :width, :width] + hidden_tokens
        x = functional.embedding(tokens, self._embeddings)
        for attention, feed_forward in self._encoder:
            q, k, v = self._split(functional.linear(self._norm(x), attention.read), 3)
            x = x + self._attend(q, k, v, bias, attention.write)
            x = x + feed_forward(self._norm(x))
        encoded = self._norm(x)
        y = self._embeddings[self._start].expand(len(tokens), 1, -1)
        for own, cross, feed_forward in self._decoder:
            y = y + functional.linear(self._norm(y), own)
            k, v = self._split(functional.linear(encoded, cross.read), 2)
            (q,) = self._split(functional.linear(self._norm(y), cross.query), 1)
            y = y + self._attend(q, k, v, hidden_tokens, cross.write)
            y = y + feed_forward(self._norm(y))
        found: Tensor = self._norm(y)[:, 0] * self._last_norm
        return found

    def _norm(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], eps=self._eps)

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """[questions, tokens, parts * width] → `parts` of [questions, heads, tokens, ...]."""
        shaped = x.view(x.shape[0], x.shape[1], parts, self._heads, -1)
        return shaped.permute(2, 0, 3, 1, 4).unbind()

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, write: Tensor) -> Tensor:
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return functional.linear(found.transpose(1, 2).flatten(2), write)


def _self_attention(layer: Any) -> SelfAttention:
    own, norm = layer.SelfAttention, layer.layer_norm.weight
    return SelfAttention(torch.cat([own.q.weight, own.k.weight, own.v.weight]) * norm, own.o.weight)


def _own_value(layer: Any) -> Tensor:
    """Self-attention over a single token: its value, written back."""
    own: Any = layer.SelfAttention
    written: Tensor = (own.o.weight @ own.v.weight) * layer.layer_norm.weight
    return written


def _cross_attention(layer: Any, encoder: Any) -> CrossAttention:
    """Reads the encoder's states before its last norm's weight, which is folded in."""
    own = layer.EncDecAttention
    return CrossAttention(
        own.q.weight * layer.layer_norm.weight,
        torch.cat([own.k.weight, own.v.weight]) * encoder.final_layer_norm.weight,
        own.o.weight,
    )


def _feed_forward(layer: Any) -> Callable[[Tensor], Tensor]:
    dense, norm = layer.DenseReluDense, layer.layer_norm.weight
    act, write = dense.act, dense.wo.weight
    if hasattr(dense, "wi_0"):
        gate, read = dense.wi_0.weight * norm, dense.wi_1.weight * norm
        return lambda x: functional.linear(
            act(functional.linear(x, gate)) * functional.linear(x, read), write
        )
    read = dense.wi.weight * norm
    return lambda x: functional.linear(act(functional.linear(x, read)), write)
