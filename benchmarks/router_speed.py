"""Compare the speed of the shipped router with a T5-large that is run as published.

The published code runs T5-large through `generate`, with scores, and takes the probabilities of A,
B and C from the first step. The T5-large here has its shape and random weights, which take the
same time; it generates two tokens, the label and the end of the text. Both are measured in one
process with the same number of threads.

    python benchmarks/router_speed.py [--threads 2] [--rounds 30]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count, cycle
from pathlib import Path
from typing import Any

import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

from hopgate.classifiers.router import Router

QUESTIONS = [
    "In what year was the bridge over the river that flows through the capital completed?",
    "Who was the mother of the director of the film that won the award in 1994?",
    "What is the boiling point of water?",
    "Which of the two lighthouses is older, the one on the north cape or the one at the harbour?",
]
"""Between 9 and 23 tokens; the median question of Flare-Aug's train splits has 16."""


def milliseconds(act: Callable[[], object]) -> float:
    """Return how long `act` takes."""
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


def in_a_row(rounds: int, **acts: Callable[[], object]) -> dict[str, list[float]]:
    """Time each act, one after the other, each after a warm-up turn."""
    return {name: [milliseconds(act) for _ in range(rounds + 1)][1:] for name, act in acts.items()}


def side_by_side(rounds: int, **acts: Callable[[], object]) -> dict[str, list[float]]:
    """Time the acts alternately, after a warm-up turn.

    Each act finds the CPU's caches as the other left them.
    """
    for act in acts.values():
        act()
    found: dict[str, list[float]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, act in acts.items():
            found[name].append(milliseconds(act))
    return found


def t5_large() -> T5ForConditionalGeneration:
    """Return a model of T5-large's shape, with random weights."""
    settings: dict[str, Any] = dict(
        vocab_size=32128, d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16,
        decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return T5ForConditionalGeneration(T5Config(**settings)).eval()


def as_published(model: T5ForConditionalGeneration, ids: list[list[int]]) -> torch.Tensor:
    """Return the probabilities of three tokens at the first step of `generate`."""
    width = max(map(len, ids))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    generated: Any = model.generate(  # type: ignore[operator]
        input_ids=tokens,
        attention_mask=(tokens != 0).long(),
        max_new_tokens=2,
        min_new_tokens=2,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return generated.scores[0][:, [71, 272, 205]].softmax(-1)  # type: ignore[no-any-return]


def p50_p95(times: list[float]) -> dict[str, float]:
    """Return the median and the 95th percentile, in milliseconds."""
    return {
        "p50": round(statistics.median(times), 2),
        "p95": round(sorted(times)[int(0.95 * (len(times) - 1))], 2),
    }


def measure(rounds: int, threads: int) -> dict[str, Any]:
    """Measure all figures; return them by name."""
    torch.set_num_threads(threads)
    large, router = t5_large(), Router.load()
    tokenizer = router._tokenizer
    ids = [encoding.ids for encoding in tokenizer.encode_batch(QUESTIONS)]
    ours, theirs = cycle(QUESTIONS), cycle(ids)
    one_question: dict[str, Callable[[], object]] = {
        "hopgate": lambda: router.route([next(ours)], 0.7),
        "t5_large": lambda: as_published(large, [next(theirs)]),
    }
    turns = side_by_side(rounds, **one_question)
    row = in_a_row(rounds, **one_question)
    many = [f"{question} ({number})" for number in range(64) for question in QUESTIONS]
    many_ids = [encoding.ids for encoding in tokenizer.encode_batch(many)]
    batch = side_by_side(
        1, hopgate=lambda: router.route(many, 0.7), t5_large=lambda: as_published(large, many_ids)
    )
    alphas = count(1)
    change = side_by_side(
        rounds,
        same=lambda: router.route([QUESTIONS[0]], 0.7),
        new=lambda: router.route([QUESTIONS[0]], (next(alphas) * 0.618) % 1),
    )
    with ThreadPoolExecutor(16) as pool:
        spread = [number / 15 for number in range(16)] * 16
        threaded = side_by_side(
            3,
            one_thread=lambda: [router.route([QUESTIONS[0]], alpha) for alpha in spread],
            sixteen_threads=lambda: list(
                pool.map(lambda alpha: router.route([QUESTIONS[0]], alpha), spread)
            ),
        )
    with tempfile.TemporaryDirectory() as folder:
        large.save_pretrained(folder)
        loading = side_by_side(
            1,
            hopgate=Router.load,
            t5_large=lambda: T5ForConditionalGeneration.from_pretrained(Path(folder)),
        )
    return {
        "threads": threads,
        "one question after another, ms": {name: p50_p95(times) for name, times in row.items()},
        "one question after another, times faster at p50": ratio(row, "t5_large", "hopgate"),
        "one question, in turns, ms": {name: p50_p95(times) for name, times in turns.items()},
        "one question, in turns, times faster at p50": ratio(turns, "t5_large", "hopgate"),
        "batch of 256, ms": {name: round(times[0], 1) for name, times in batch.items()},
        "batch of 256, times faster": ratio(batch, "t5_large", "hopgate"),
        "a decision at a new α, against one at a known α": ratio(change, "new", "same"),
        "256 calls, one thread against 16 threads with 16 α": ratio(
            threaded, "one_thread", "sixteen_threads"
        ),
        "loading, ms": {name: round(times[0]) for name, times in loading.items()},
        "loading, times faster": ratio(loading, "t5_large", "hopgate"),
    }


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """Return the median of one divided by the median of the other."""
    return round(statistics.median(times[one]) / statistics.median(times[other]), 2)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(measure(given.rounds, given.threads), indent=2) + "\n")


if __name__ == "__main__":
    main()
