"""How often each mode of retrieval finds the passages that answer, on three sets of questions.

    python benchmarks/retrieval_quality.py --data FOLDER [--rerank CROSS_ENCODER] [--share 0.01]

FOLDER holds `xquad/en.dev.jsonl`, `multihop/dev.jsonl` and `retrievalqa/dev.jsonl`. Every passage
of all three goes into one index, whole, and every question is asked of it. What is to be found:

- xquad: the question's own paragraph.
- multihop: all gold paragraphs. A paragraph of the question's context is gold if its title,
  without what stands in brackets, is in the question or in the chain of reasoning; questions with
  fewer than two such are left out.
- retrievalqa: a passage that holds an accepted answer (normalised containment), of any question's;
  questions whose own passages hold none are left out.

Prints a Markdown table: recall@1/5/20 (multihop: share of questions all of whose gold paragraphs
are among the first k, so @1 is left out) and MRR@20 (of the first passage that is to be found).
`mean` is over the sets, each counting the same.
"""

import argparse
import functools
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.nodes.text import normalise
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.building import build_from_passages
from hopgate.retrievers.index import load_index
from hopgate.retrievers.rerank import Reranked, load_reranker
from hopgate.retrievers.sources import InMode

DEPTHS = (1, 5, 20)
MODES = ("dense", "bm25", "hybrid")


class Question(NamedTuple):
    """A question of a set, and what must be found: all of `wanted`, or one of them."""

    dataset: str
    text: str
    wanted: frozenset[str]
    every: bool


def rows(path: Path, share: float) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[: max(2, round(len(lines) * share))]]


def passage(row: dict[str, Any] | str) -> Passage:
    """Read a passage of any of the shapes in which the sets come."""
    if isinstance(row, str):
        return make_passage("", row)
    return make_passage(row["title"].replace("_", " "), row.get("text") or "")


def read_xquad(path: Path, share: float) -> tuple[list[Passage], list[Question]]:
    passages, questions = [], []
    for row in rows(path, share):
        own = make_passage(row["title"].replace("_", " "), row["context"])
        passages.append(own)
        wanted = frozenset([own["id"]])
        questions += [Question("xquad", qa["question"], wanted, False) for qa in row["qas"]]
    return passages, questions


def read_multihop(path: Path, share: float) -> tuple[list[Passage], list[Question]]:
    passages, questions = [], []
    for row in rows(path, share):
        context = [passage(each) for each in row["context"]]
        passages += context
        said = f" {normalise(row['question'] + ' ' + row['rationale'])} "
        gold = frozenset(p["id"] for p in context if f" {bare(p['title'])} " in said)
        if len(gold) > 1:
            questions.append(Question("multihop", row["question"], gold, True))
    return passages, questions


def bare(title: str) -> str:
    return normalise(re.sub(r"\(.*?\)", "", title))


def read_retrievalqa(path: Path, share: float) -> tuple[list[Passage], list[Question]]:
    passages, questions = [], []
    for row in rows(path, share):
        context = [passage(each) for each in row["context"]]
        passages += context
        if holding(context, row["ground_truth"]):
            golds = frozenset(row["ground_truth"])
            questions.append(Question("retrievalqa", row["question"], golds, False))
    return passages, questions


def holding(passages: Sequence[Passage], answers: Sequence[str]) -> frozenset[str]:
    """Ids of the passages that hold one of the answers."""
    golds = [gold for answer in answers if (gold := form(answer))]
    texts = ((p["id"], form(f"{p['title']} {p['text']}")) for p in passages)
    return frozenset(name for name, text in texts if any(gold in text for gold in golds))


form = functools.cache(normalise)


def scores(found: Sequence[str], wanted: frozenset[str], every: bool) -> list[float]:
    """Recall at each depth, and the reciprocal rank of the first that is wanted."""
    at = [rank for rank, each in enumerate(found, start=1) if each in wanted]
    least = len(wanted) if every else 1
    recalls = [float(sum(rank <= depth for rank in at) >= least) for depth in DEPTHS]
    if every:
        recalls[0] = math.nan  # one passage is never all of them
    return [*recalls, 1 / at[0] if at else 0.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rerank", default="", help="name or folder of a cross-encoder")
    parser.add_argument("--share", type=float, default=1.0, help="of each set's rows")
    arguments = parser.parse_args()
    readers: dict[str, Callable[[Path, float], tuple[list[Passage], list[Question]]]] = {
        "xquad/en.dev.jsonl": read_xquad,
        "multihop/dev.jsonl": read_multihop,
        "retrievalqa/dev.jsonl": read_retrievalqa,
    }
    passages: dict[str, Passage] = {}
    questions: list[Question] = []
    for name, reader in readers.items():
        read, asked = reader(arguments.data / name, arguments.share)
        passages |= {each["id"]: each for each in read if each["title"] or each["text"]}
        questions += asked
    every = list(passages.values())
    questions = [
        each._replace(wanted=holding(every, sorted(each.wanted)))
        if each.dataset == "retrievalqa"
        else each
        for each in questions
    ]
    with tempfile.TemporaryDirectory() as folder:
        build_from_passages(every, Path(folder) / "index", progress=print_progress)
        report(Path(folder) / "index", questions, len(every), arguments.rerank)


def print_progress(stage: str, done: int, total: int) -> None:
    print(f"{stage}: {done}/{total}", file=sys.stderr)


def report(index: Path, questions: list[Question], passages: int, rerank: str) -> None:
    counts = {name: sum(q.dataset == name for q in questions) for name in DATASETS}
    print(f"{passages} passages; questions: {counts}\n")
    print("| set | mode | recall@1 | recall@5 | recall@20 | MRR@20 | ms a query |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for reranker in filter(None, ("off", rerank)):
        for mode in MODES:
            retriever = InMode(load_index(index), mode)
            if reranker != "off":
                retriever = Reranked(retriever, load_reranker(reranker))
            table(retriever, mode if reranker == "off" else f"{mode}, reranked", questions)


DATASETS = ("xquad", "multihop", "retrievalqa")


def table(retriever: Any, name: str, questions: list[Question]) -> None:
    retriever.search(["warm up"], k=1)
    means = []
    for dataset in DATASETS:
        asked = [each for each in questions if each.dataset == dataset]
        started = time.perf_counter()
        found = [retriever.search([each.text], max(DEPTHS))[0] for each in asked]
        spent = (time.perf_counter() - started) / len(asked) * 1000
        rows_ = [
            scores([hit["id"] for hit in hits], each.wanted, each.every)
            for hits, each in zip(found, asked, strict=True)
        ]
        means.append([statistics.mean(column) for column in zip(*rows_, strict=True)])
        print(line(dataset, name, means[-1], f"{spent:.1f}"))
    known = [[mean for mean in each if not math.isnan(mean)] for each in zip(*means, strict=True)]
    print(line("mean", name, [statistics.mean(each) for each in known], ""))


def line(dataset: str, name: str, means: Sequence[float], spent: str) -> str:
    shown = ["–" if math.isnan(each) else f"{each:.3f}" for each in means]
    return f"| {dataset} | {name} | {' | '.join(shown)} | {spent} |"


if __name__ == "__main__":
    main()
