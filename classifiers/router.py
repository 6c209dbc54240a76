"""Routing: the probabilities of A, B and C for a question at any α.

θ = (1 − w)·θ_cost + w·θ_reliability over every parameter in which cost and reliability weights
differ (Flare-Aug, section 3). The dial of the LLM gives the weight w for α (see
`hopgate.classifiers.dial`); without one, w is α, as published. The probabilities are the softmax
over the three label rows; no text is generated. If only the label heads differ, all α share one
pass of the encoder.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopgate.classifiers.checkpoint import (
    BUILTIN_FOLDER,
    HEAD,
    MANIFEST,
    MAX_TOKENS,
    Checkpoint,
    profiles_in,
    read,
    router_folder,
)
from hopgate.classifiers.decision import DEFAULT_ALPHA
from hopgate.classifiers.dial import Dial
from hopgate.classifiers.doubts import doubt
from hopgate.classifiers.profiles import checked_profile
from hopgate.common.cache import Cache
from hopgate.common.errors import require
from hopgate.common.onnx import Network
from hopgate.common.strategies import LABELS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Encoding

    Features = Callable[[Sequence[list[int]]], NDArray[np.float32]]

Probabilities = dict[str, float]


class Router:
    """Route questions with one network and two sets of weights, blended per request.

    Safe to use from many threads at once, with different α. Runs on ONNX Runtime if all α share
    one body, else through torch, which the extra `train` brings.

    Attributes:
        source: The architecture, such as `t5`; decisions carry it.
        profile: The LLM that the cost weights were trained for, e.g. `flan-t5-xl`.
        profiles: All LLMs that the folder has cost weights for.
        alpha: The default α of requests.
        dial: From α to the weight of the reliability weights, and back.
        one_pass: Whether all α share one pass of the encoder, so that many cost as much as one.
        training: Data, recipe and figures of the training.
        known: The summary of the LLM's training questions; None if the router has none.
    """

    def __init__(self, checkpoint: Checkpoint, profile: str | None = None) -> None:
        """Create a router from weights in memory; `Router.load` reads them from disk.

        Args:
            checkpoint: With reliability weights and the cost weights of at least one LLM.
            profile: The LLM whose weights to use; default: the first.

        Raises:
            ValueError: Weights are missing, or do not fit the configuration or the graph.
            RuntimeError: The router needs torch, which is not installed.
        """
        self.source = checkpoint.architecture
        self.training = checkpoint.training
        self.profiles = checkpoint.profiles
        self.profile = checked_profile(profile, self.profiles)
        self.dial = checkpoint.dials.get(self.profile, Dial())
        self.alpha = checkpoint.alphas.get(self.profile, DEFAULT_ALPHA)
        self.known = checkpoint.known.get(self.profile)
        self.one_pass = checkpoint.one_pass
        self._tokenizer = checkpoint.tokenizer
        cost, reliability = map(checkpoint.state, checkpoint.blended_parts(self.profile))
        self._cost, self._reliability = cost, reliability
        if checkpoint.graph and self.one_pass:
            body = {name: values for name, values in cost.items() if not name.startswith(HEAD)}
            network = Network(checkpoint.graph, body)
            self._features_at: Callable[[float], Features] = lambda weight: network.run
        else:
            older = "a router whose weights differ below the label head, or of an earlier version,"
            require(older, "torch", "transformers")
            from hopgate.classifiers.blending import blended_body

            self._features_at = blended_body(checkpoint, self.profile)

    @classmethod
    def load(cls, path: Path | str = BUILTIN_FOLDER, profile: str | None = None) -> Router:
        """Read a router's folder, by default `builtin`: the one that ships with hopgate.

        Raises:
            ValueError: The folder is not a router's, or has no such profile.
            RuntimeError: A file is missing or was altered.
        """
        return cls(read(path, base=False), profile)

    def route(self, questions: Sequence[str], alpha: float) -> list[Probabilities]:
        """Return the probabilities of A (no retrieval), B (one) and C (several) for each question.

        Args:
            questions: Non-empty strings; cut at 384 tokens.
            alpha: From 0 (cheapest) to 1 (most reliable).

        Returns:
            One `{"A": …, "B": …, "C": …}` for each question, in order; each sums to 1.

        Raises:
            ValueError: α is not in [0, 1] or a question is empty.
        """
        return self.route_alphas(questions, [alpha])[0]

    def route_alphas(
        self, questions: Sequence[str], alphas: Iterable[float]
    ) -> list[list[Probabilities]]:
        """Route at several α, as `route` does: one list for each α, in order."""
        weights = []
        for alpha in alphas:
            if not 0 <= alpha <= 1:
                raise ValueError(f"alpha is {alpha!r}; it must be a number from 0 (cheapest) to 1")
            weights.append(self.dial.weight(alpha))
        for at, question in enumerate(questions):
            if not isinstance(question, str) or not question.strip():
                raise ValueError(f"question {at + 1} is empty; give a text to route")
        if not questions or not weights:
            return [[] for _ in weights]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(questions))]
        if self.one_pass:
            features = self._features_at(weights[0])(ids)
            return [self._probabilities(features, weight) for weight in weights]
        return [self._probabilities(self._features_at(each)(ids), each) for each in weights]

    def doubts(self, questions: Sequence[str]) -> list[str | None]:
        """Return for each question why its decision is unreliable; None if it is not."""
        english = bool(self.training.get("english", False))
        found = zip(questions, self._tokenizer.encode_batch(list(questions)), strict=True)
        return [doubt(q, len(e.ids), MAX_TOKENS, english, _split(e)) for q, e in found]

    def _probabilities(self, features: NDArray[np.float32], weight: float) -> list[Probabilities]:
        """Apply the label head that blends with `weight`: the softmax over its three rows."""
        rows, bias = (
            (1 - weight) * self._cost[name] + weight * self._reliability[name]
            for name in ("head.weight", "head.bias")
        )
        scores = features @ rows.T + bias
        powers = np.exp(scores - scores.max(1, keepdims=True))
        shares = powers / powers.sum(1, keepdims=True)
        return [dict(zip(LABELS, map(float, row), strict=True)) for row in shares]


def _split(encoding: Encoding) -> float:
    """Return the share of a question's words that the vocabulary has only in pieces."""
    pieces = Counter(word for word in encoding.word_ids if word is not None)
    return sum(count > 1 for count in pieces.values()) / max(1, len(pieces))


_routers = Cache[Router]()


def load_router(path: Path | str = "builtin", profile: str | None = None) -> Router:
    """Load a router once per process, and again after it was trained again.

    Takes the arguments of `Router.load` and raises its errors.
    """
    chosen = checked_profile(profile, profiles_in(path))
    key = os.path.abspath(path), chosen  # of several versions, only the one in use is kept
    return _routers.get(key, lambda: Router.load(path, chosen), [router_folder(path) / MANIFEST])
