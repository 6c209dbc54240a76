"""Does `hopgate doctor --questions` tell questions like a profile's training questions from others?

    python benchmarks/drift.py ../shared/data --profile flan-t5-xl

Prints Markdown: the index of several sets of questions, and how many random samples of each are
called unlike, which for the like ones are false alarms. The like ones are Flare-Aug's validation
questions, which no shipped router was trained on; for another profile, give --like FILE.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopgate.classifiers.drift import MIN_QUESTIONS, SCORES, Summary, drift
from hopgate.classifiers.router import Router, load_router

SIZES = (100, 200, 500)
SAMPLES = 200


class Remembered:
    """A router that routes each question once."""

    def __init__(self, router: Router) -> None:
        """Remember nothing yet."""
        self._router = router
        self._found: dict[tuple[str, float], Any] = {}

    def route_alphas(
        self, questions: Sequence[str], alphas: Sequence[float]
    ) -> list[list[dict[str, float]]]:
        """Return the probabilities; see `Router.route_alphas`."""
        new = [each for each in questions if (each, alphas[0]) not in self._found]
        for alpha, rows in zip(alphas, self._router.route_alphas(new, alphas), strict=True):
            self._found |= {(q, alpha): row for q, row in zip(new, rows, strict=True)}
        return [[self._found[each, alpha] for each in questions] for alpha in alphas]

    def doubts(self, questions: Sequence[str]) -> list[str | None]:
        """Return the doubts; see `Router.doubts`."""
        return self._router.doubts(questions)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--profile", default="flan-t5-xl")
    parser.add_argument("--like", type=Path, help="questions of the training's kind")
    options = parser.parse_args()
    plain = load_router(profile=options.profile)
    known = plain.known
    if known is None:
        parser.error("the router has no summary; see tools/redial.py")
    router = Remembered(plain)
    data = options.data
    sets = {
        "like": texts(options.like or data / "flare/questions.valid.jsonl"),
        "XQuAD, English": texts(data / "xquad/en.dev.jsonl"),
        "XQuAD, German": texts(data / "xquad/de.dev.jsonl"),
        "RetrievalQA": texts(data / "retrievalqa/dev.jsonl"),
        "common knowledge": texts(Path(__file__).parent / "questions/common.jsonl"),
    }
    print(f"{options.profile}, {known.questions:,} training questions\n")
    print(f"| questions | | {' | '.join(SCORES)} | chance up to | doubted | called |")
    print("|---|---|---|---|---|---|---|")
    for name, asked in sets.items():
        found = drift(router, known, asked)
        cells = [f"{found.index[each]:.2f}" for each in SCORES]
        cells += [f"{max(found.chance.values()):.2f}", f"{found.now.doubted:.0%}"]
        print(f"| {name} | {len(asked):,} | {' | '.join(cells)} | {called(found.unlike)} |")
    print(f"\n| called unlike, of {SAMPLES} samples | {' | '.join(map(str, SIZES))} questions |")
    print(f"|---|{'---|' * len(SIZES)}")
    for name, asked in sets.items():
        shares = [share(router, known, asked, size) for size in SIZES if size < len(asked)]
        print(f"| {name} | {' | '.join(f'{each:.1%}' for each in shares)} |")


def share(router: Remembered, known: Summary, asked: Sequence[str], size: int) -> float:
    """Return how many random samples of the questions are called unlike."""
    generator = np.random.default_rng(0)
    drawn = (generator.choice(len(asked), size, replace=False) for _ in range(SAMPLES))
    found = [drift(router, known, [asked[at] for at in each]).unlike for each in drawn]
    return sum(map(bool, found)) / SAMPLES


def called(unlike: Sequence[str] | None) -> str:
    """Return the verdict in a word or two."""
    return f"fewer than {MIN_QUESTIONS}" if unlike is None else "unlike" if unlike else "like"


def texts(path: Path) -> list[str]:
    """Return the questions of a file, each once; XQuAD has several in a row."""
    rows: Iterable[Any] = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    found = [each["question"] for row in rows for each in row.get("qas", [row])]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    main()
