"""Routers whose whole body blends, which run through torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tiny_models import small_router, small_t5

from hopgate.classifiers import blending
from hopgate.classifiers.checkpoint import Checkpoint
from hopgate.classifiers.networks import network_from, padded
from hopgate.classifiers.router import Probabilities, Router

QUESTIONS = ["who wrote it", "when was the mother of the mother of it built", "who", "the built it"]


@pytest.fixture(scope="module")
def blended() -> Checkpoint:
    return small_router(small_t5(0), small_t5(1), one_body=False)


def as_rows(found: list[Probabilities]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.array([[row[label] for label in "ABC"] for row in found])


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_alpha_blends_every_parameter(blended: Checkpoint, alpha: float) -> None:
    cost, reliability = blended.state("cost-tiny"), blended.state("reliability")
    mixed = {name: (1 - alpha) * cost[name] + alpha * reliability[name] for name in cost}
    network = network_from("t5", blended.config, mixed)
    expected = []
    for question in QUESTIONS:
        tokens, mask = padded([blended.tokenizer.encode(question).ids])
        with torch.no_grad():
            scores = network.head(network.features(tokens, mask))
        expected.append(scores[0].softmax(-1).tolist())
    found = as_rows(Router(blended).route(QUESTIONS, alpha))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_threads_with_different_alpha_do_not_mix(blended: Checkpoint) -> None:
    router, alphas = Router(blended), [step / 11 for step in range(12)]
    expected = [as_rows(router.route(QUESTIONS, alpha)) for alpha in alphas]
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda alpha: router.route(QUESTIONS, alpha), alphas * 3))
    assert len({str(rows) for rows in expected}) == 12
    for rows, wanted in zip(found, expected * 3, strict=True):
        np.testing.assert_allclose(as_rows(rows), wanted, atol=1e-5)


@pytest.mark.parametrize(("bytes_", "kept"), [(blending.BLEND_BYTES, blending.BLENDS), (1, 1)])
def test_the_networks_used_last_stay_in_memory(
    blended: Checkpoint, monkeypatch: pytest.MonkeyPatch, bytes_: int, kept: int
) -> None:
    made: list[int] = []

    def counted(*arguments: object) -> object:
        made.append(1)
        return network_from(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(blending, "network_from", counted)
    monkeypatch.setattr(blending, "BLEND_BYTES", bytes_)
    router, alphas = Router(blended), [step / 10 for step in range(11)]
    router.route_alphas(QUESTIONS[:1], alphas)
    assert len(made) == 11
    router.route_alphas(QUESTIONS[:1], alphas[-kept:])
    assert len(made) == 11
    router.route(QUESTIONS[:1], alphas[0])
    assert len(made) == 12
