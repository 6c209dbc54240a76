"""Routers for replays on recorded outcomes: none has seen the questions that it is scored on.

    nice python benchmarks/halves.py ../shared/data/flare --cache build/halves

The training questions of Flare-Aug's four LLMs are split in two halves. For each half, the shipped
recipe trains five routers on the other one: with the outcomes of all four LLMs, and four times
without one of them. One more is trained without FLAN-T5-XL on all questions, for its validation
questions. What each router makes of the questions it has not seen goes into an .npz file of the
cache: eleven trainings, about three minutes each on one core, skipped where their file exists.

`few_labels.py` and `promise.py` read these files.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from router_learning_curve import ASKED, LLMS

from hopgate.classifiers.checkpoint import COST, read
from hopgate.classifiers.labels import read_labels, read_questions
from hopgate.classifiers.networks import all_features, network_from
from hopgate.classifiers.router import Router
from hopgate.classifiers.training.train import train
from hopgate.classifiers.training.utility import chances_of
from hopgate.common.strategies import STRATEGIES
from hopgate.evaluation.measuring.calibration import ALPHAS
from hopgate.evaluation.measuring.replay import MULTI_STEPS, route_all

ALL = "all"
VALID = "flan-t5-xl"
"""The LLM whose outcomes on the validation questions were released."""
Floats = NDArray[np.float64]


class Unseen(NamedTuple):
    """Questions that a router has not seen, and what it makes of them.

    Attributes:
        right: Whether each strategy of the left-out LLM was right: [questions, 3]; of a router
            with all LLMs, for each of them: [LLMs, questions, 3].
        steps: [questions, 3].
        features: [questions, width]; empty for a router with all LLMs.
        heads: P(right) of the other LLMs, as `chances_of`: [LLMs, width + 1, 3]; likewise.
        choices: Of a router with all LLMs, at `ALPHAS`: [LLMs, alphas, questions]; else empty.
    """

    right: Floats
    steps: Floats
    features: Floats
    heads: Floats
    choices: NDArray[np.int8]


def main() -> None:
    """Train what the cache lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flare", type=Path, metavar="FOLDER")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", help="one file of the cache, such as gpt-4o-0")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.cache.mkdir(parents=True, exist_ok=True)
    names = [f"{without}-{half}" for without in (*LLMS, ALL) for half in (0, 1)]
    for name in (*names, f"{VALID}-valid"):
        target = options.cache / f"{name}.npz"
        if options.only in (None, name) and not target.exists():
            np.savez_compressed(target, **made(options.flare, name)._asdict())
            print(f"{target} written", flush=True)


def unseen(cache: Path, name: str) -> Unseen:
    """Read a file of the cache."""
    with np.load(cache / f"{name}.npz") as found:
        return Unseen(**{field: found[field] for field in Unseen._fields})


def made(flare: Path, name: str) -> Unseen:
    """Train one router and apply it to the questions that it has not seen."""
    without, _, half = name.rpartition("-")
    held = "valid" if half == "valid" else int(half)
    questions = list(known_questions(flare).values())
    hidden = [each for at, each in enumerate(questions) if at % 2 == held]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cost = {
            llm: [filtered(flare / f"{file}.train.jsonl", folder, hidden)]
            for llm, file in LLMS.items()
            if llm != without
        }
        hops = filtered(flare / "binary.train.jsonl", folder, hidden)
        asked = ASKED if held == "valid" else ASKED // 2
        train(cost, hops, folder / "router", asked=asked, advance=progress)
        if without == ALL:
            return routed(flare, folder / "router", hidden)
        return added(flare, folder / "router", without, None if held == "valid" else hidden)


def progress(stage: str, done: int, total: int) -> None:
    """Print every hundredth step."""
    if done % 100 == 0:
        print(f"  {stage} {done}/{total}", flush=True)


def known_questions(flare: Path) -> dict[str, str]:
    """Return the questions that any LLM answered, by id, in an order without any meaning."""
    rows = [row for file in LLMS.values() for row in read_labels(flare / f"{file}.train.jsonl")]
    texts = {row.id: row.question for row in rows}
    order = np.random.default_rng(0).permutation(len(texts))
    every = sorted(texts)
    return {every[at]: texts[every[at]] for at in order}


def filtered(source: Path, folder: Path, hidden: Iterable[str]) -> Path:
    """Write the rows of a label file without those of some questions."""
    out, without = folder / source.name, set(hidden)
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    out.write_text("".join(line for line in lines if json.loads(line)["question"] not in without))
    return out


def outcomes(labels: Path, questions: Iterable[str]) -> Floats:
    """Return whether each strategy was right, [questions, 3]; no row: none was."""
    by_question = {row.question: row.right for row in read_labels(labels)}
    nothing = (False,) * len(STRATEGIES)
    return np.array([by_question.get(each, nothing) for each in questions], dtype=float)


def steps_of(datasets: Iterable[str]) -> Floats:
    """Return the steps of each strategy, [questions, 3]."""
    return np.array([[0, 1, MULTI_STEPS[dataset]] for dataset in datasets])


def datasets_of(flare: Path) -> dict[str, str]:
    """Return the dataset of each training question."""
    rows = [row for file in LLMS.values() for row in read_labels(flare / f"{file}.train.jsonl")]
    return {row.question: row.dataset for row in rows}


def added(flare: Path, router: Path, llm: str, hidden: list[str] | None) -> Unseen:
    """Return the features of unseen questions, and the outcomes of the LLM left out."""
    if hidden is None:
        rows = read_questions(flare / "questions.valid.jsonl")
        texts, datasets = [row.question for row in rows], [row.dataset for row in rows]
        labels = flare / f"{LLMS[llm]}.valid.jsonl"
    else:
        known = datasets_of(flare)
        texts, datasets = hidden, [known[question] for question in hidden]
        labels = flare / f"{LLMS[llm]}.train.jsonl"
    checkpoint = read(router)
    others = checkpoint.profiles
    network: Any = network_from(
        checkpoint.architecture, checkpoint.config, checkpoint.state(COST + others[0])
    )
    ids = [each.ids for each in checkpoint.tokenizer.encode_batch(texts)]
    order = np.argsort([len(each) for each in ids], kind="stable")
    features = np.empty((len(ids), network.head.in_features))
    features[order] = all_features(network, [ids[at] for at in order]).numpy()
    heads = np.stack([chances_of(checkpoint.parts[COST + each]).numpy() for each in others])
    none = np.empty(0, np.int8)
    return Unseen(outcomes(labels, texts), steps_of(datasets), features, heads, none)


def routed(flare: Path, router: Path, hidden: list[str]) -> Unseen:
    """Return the choices of a router for each of its LLMs, and their outcomes."""
    known = datasets_of(flare)
    right = [outcomes(flare / f"{file}.train.jsonl", hidden) for file in LLMS.values()]
    choices = [route_all(Router.load(router, llm), hidden, ALPHAS).choices for llm in LLMS]
    steps = steps_of(known[question] for question in hidden)
    return Unseen(np.stack(right), steps, np.empty(0), np.empty(0), np.stack(choices))


if __name__ == "__main__":
    main()
