"""A fast forward pass of a T5: the features of `T5Network.features`, in a fifth of the time.

For a single question most of the time is overhead. So the norms are folded into the projections
that follow them, q, k and v are one matrix, the position bias is computed once, and the decoder,
which sees one token, skips self-attention. The rest is bound by memory bandwidth, so on a CPU the
weights can be stored in half precision. Training uses `transformers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hopgate.classifiers.checkpoint import MAX_TOKENS
from hopgate.classifiers.networks import T5Network

Apply = Callable[[Tensor], Tensor]


class SelfAttention(NamedTuple):
    """Projections: q, k and v as one matrix, and the output."""

    read: Apply
    write: Apply


class CrossAttention(NamedTuple):
    """Projections: q; k and v of the encoder's states as one matrix; and the output."""

    query: Apply
    read: Apply
    write: Apply


class ServedT5:
    """Compute the features of a `T5Network` whose weights no longer change.

    In half precision they differ by about 2e-4 of their length.
    """

    def __init__(self, network: T5Network, half: bool) -> None:
        """Fuse the network's weights; its embeddings are shared.

        Args:
            network: With its final weights.
            half: Store the matrices in half precision if the CPU can multiply by them. Packing
                takes 0.2 s for 10M parameters, so it is worthwhile for a network that is reused.
        """
        t5: Any = network.t5
        self._half = half and _has_half_precision(t5.shared.weight)
        self._heads = t5.config.num_heads
        self._embeddings = t5.shared.weight
        self._root = math.sqrt(t5.config.d_model)
        self._least = torch.tensor(
            self._root * math.sqrt(t5.config.layer_norm_epsilon), device=self._embeddings.device
        )
        self._start = t5.config.decoder_start_token_id
        encoder, decoder = t5.encoder, t5.decoder
        self._bias = encoder.block[0].layer[0].SelfAttention.compute_bias(MAX_TOKENS, MAX_TOKENS)
        self._encoder = [
            (self._self_attention(block.layer[0]), self._feed_forward(block.layer[1]))
            for block in encoder.block
        ]
        self._decoder = [
            (
                self._own_value(block.layer[0]),
                self._cross_attention(block.layer[1], encoder),
                self._feed_forward(block.layer[2]),
            )
            for block in decoder.block
        ]
        self._last_norm = decoder.final_layer_norm.weight * self._root

    def __call__(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the features, as `T5Network.features` does."""
        width = tokens.shape[1]
        hidden_tokens = (1 - mask)[:, None, None, :] * torch.finfo(self._bias.dtype).min
        bias = self._bias[:, :, :width, :width] + hidden_tokens
        x = functional.embedding(tokens, self._embeddings)
        for attention, feed_forward in self._encoder:
            q, k, v = self._split(attention.read(self._direction(x)), 3)
            x = x + attention.write(_attend(q, k, v, bias))
            x = x + feed_forward(self._direction(x))
        encoded = self._direction(x)
        y = self._embeddings[self._start].expand(len(tokens), 1, -1)
        for own, cross, feed_forward in self._decoder:
            y = y + own(self._direction(y))
            k, v = self._split(cross.read(encoded), 2)
            (q,) = self._split(cross.query(self._direction(y)), 1)
            y = y + cross.write(_attend(q, k, v, hidden_tokens))
            y = y + feed_forward(self._direction(y))
        found: Tensor = self._direction(y)[:, 0] * self._last_norm
        return found

    def _direction(self, x: Tensor) -> Tensor:
        """Apply T5's norm without its factor √width, which the next projection contains."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        found: Tensor = x / length.hypot(self._least)
        return found

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split [questions, tokens, parts * width] into parts of [questions, heads, tokens, …]."""
        shaped = x.view(x.shape[0], x.shape[1], parts, self._heads, -1)
        return shaped.permute(2, 0, 3, 1, 4).unbind()

    def _product(self, weight: Tensor) -> Apply:
        """Return the product with a matrix: x → x · weightᵀ.

        FBGEMM's half-precision product accumulates in single precision and handles each row
        separately, so a question's decision does not depend on the rest of its batch.
        """
        if not self._half:
            return lambda x: functional.linear(x, weight)
        multiply = torch.ops.quantized.linear_dynamic_fp16
        packed = torch.ops.quantized.linear_prepack_fp16(weight.detach().contiguous(), None)
        return lambda x: multiply(x, packed)

    def _self_attention(self, layer: Any) -> SelfAttention:
        own, norm = layer.SelfAttention, layer.layer_norm.weight * self._root
        read = torch.cat([own.q.weight, own.k.weight, own.v.weight]) * norm
        return SelfAttention(self._product(read), self._product(own.o.weight))

    def _own_value(self, layer: Any) -> Apply:
        """Return self-attention over a single token, which is its projected value."""
        own: Any = layer.SelfAttention
        return self._product((own.o.weight @ own.v.weight) * layer.layer_norm.weight * self._root)

    def _cross_attention(self, layer: Any, encoder: Any) -> CrossAttention:
        """Return cross-attention, with the weight of the encoder's last norm folded in."""
        own = layer.EncDecAttention
        read = torch.cat([own.k.weight, own.v.weight]) * encoder.final_layer_norm.weight
        return CrossAttention(
            self._product(own.q.weight * layer.layer_norm.weight * self._root),
            self._product(read * self._root),
            self._product(own.o.weight),
        )

    def _feed_forward(self, layer: Any) -> Apply:
        dense, norm = layer.DenseReluDense, layer.layer_norm.weight * self._root
        act, write = dense.act, self._product(dense.wo.weight)
        if hasattr(dense, "wi_0"):
            gate = self._product(dense.wi_0.weight * norm)
            gated = self._product(dense.wi_1.weight * norm)
            return lambda x: write(act(gate(x)) * gated(x))
        read = self._product(dense.wi.weight * norm)
        return lambda x: write(act(read(x)))


def _has_half_precision(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attend as T5 does, without a scale; return [questions, tokens, heads * …]."""
    found = (q @ k.transpose(-1, -2) + bias).softmax(-1) @ v
    return found.transpose(1, 2).flatten(2)
