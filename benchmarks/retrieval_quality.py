"""How often each retrieval mode finds the answering passages, on three question sets.

    python benchmarks/retrieval_quality.py --data FOLDER [--beside TREE | --store STORE …]
        [--rerank CROSS_ENCODER]

FOLDER holds `xquad/en.dev.jsonl`, `multihop/dev.jsonl` and `retrievalqa/dev.jsonl`. Every passage
of all three goes into one index, whole, and every question is searched in it. The targets:

- xquad: the question's own paragraph.
- multihop: all gold paragraphs. A paragraph of the question's context is gold if its title, without
  any text in brackets, is in the question or in the chain of reasoning; questions with fewer than
  two such are left out.
- retrievalqa: any question's passage that contains an accepted answer (normalised containment);
  questions whose own passages contain none are left out.

Prints a Markdown table: recall@1/5/20 (multihop: share of questions all of whose gold paragraphs
are among the first k, so @1 is left out) and MRR@20 (of the first target). `mean` is over the sets,
with equal weight; `default` is the mode that an index chooses.

With `--beside`, another checkout of hopgate gets the same passages and questions (beside.py), and a
second table has the differences: this one minus the other, with the 95% interval of a paired
bootstrap over the questions (of each set by itself, for `mean`). A difference whose interval is
below 0 is marked `worse`, one above it `better`; of forty such intervals, two miss by chance.

With `--store`, the index is also pushed into collections of outside stores, whose addresses must be
set, and a table for each has the differences: the store minus the index in a folder.
"""

import argparse
import functools
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from beside import Subject, in_turns, serve, trees
from processes import Stopwatch

from hopgate.nodes.texts.text import normalise
from hopgate.retrievers.base import Passage, make_passage

DEPTHS = (1, 5, 20)
MEASURES = (*(f"recall@{depth}" for depth in DEPTHS), "MRR@20")
MODES = {"dense": "dense", "bm25": "bm25", "hybrid": "hybrid", "default": None}
DATASETS = ("xquad", "multihop", "retrievalqa")
RESAMPLES = 10_000


class Question(NamedTuple):
    """A question of a set, and its targets: all of `wanted`, or one of them."""

    dataset: str
    text: str
    wanted: frozenset[str]
    every: bool


def rows(path: Path, share: float) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[: max(2, round(len(lines) * share))]]


def passage(row: dict[str, Any] | str) -> Passage:
    """Read a passage in any of the sets' formats."""
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
    """Ids of the passages that contain one of the answers."""
    golds = [gold for answer in answers if (gold := form(answer))]
    texts = ((p["id"], form(f"{p['title']} {p['text']}")) for p in passages)
    return frozenset(name for name, text in texts if any(gold in text for gold in golds))


form = functools.cache(normalise)


def scores(found: Sequence[str], wanted: frozenset[str], every: bool) -> list[float]:
    """Recall at each depth, and the reciprocal rank of the first target."""
    at = [rank for rank, each in enumerate(found, start=1) if each in wanted]
    least = len(wanted) if every else 1
    recalls = [float(sum(rank <= depth for rank in at) >= least) for depth in DEPTHS]
    if every:
        recalls[0] = math.nan  # one passage is never all of them
    return [*recalls, 1 / at[0] if at else 0.0]


def collect(data: Path, share: float) -> tuple[list[Passage], list[Question]]:
    """Read the passages of all sets, each once, and the questions."""
    readers: dict[str, Callable[[Path, float], tuple[list[Passage], list[Question]]]] = {
        "xquad/en.dev.jsonl": read_xquad,
        "multihop/dev.jsonl": read_multihop,
        "retrievalqa/dev.jsonl": read_retrievalqa,
    }
    passages: dict[str, Passage] = {}
    questions: list[Question] = []
    for name, reader in readers.items():
        read, asked = reader(data / name, share)
        passages |= {each["id"]: each for each in read if each["title"] or each["text"]}
        questions += asked
    every = list(passages.values())
    return every, [
        each._replace(wanted=holding(every, sorted(each.wanted)))
        if each.dataset == "retrievalqa"
        else each
        for each in questions
    ]


def answer(folder: Path, store: str = "") -> None:
    """Build an index of `passages.json`, or push the existing one; answer searches."""
    from hopgate.retrievers.building import build_from_passages
    from hopgate.retrievers.rerank import Reranked, load_reranker
    from hopgate.retrievers.sources import open_source

    def progress(stage: str, done: int, total: int) -> None:
        print(f"{stage}: {done}/{total}", file=sys.stderr)

    with tempfile.TemporaryDirectory() as out:
        passages = json.loads((folder / "passages.json").read_text(encoding="utf-8"))
        index = store or Path(out, "index")
        if (folder / "index").is_dir():
            from hopgate.retrievers.stores.push import push

            push(folder / "index", index, progress, replace=True)
        else:
            build_from_passages(passages, index, progress=progress)

        def search(texts: list[str], mode: Any, rerank: str) -> dict[str, Any]:
            retriever: Any = open_source(str(index), mode or "auto")
            if rerank:
                retriever = Reranked(retriever, load_reranker(rerank))
            retriever.search(["warm up"], k=1)
            watch = Stopwatch()
            found = [retriever.search([text], max(DEPTHS))[0] for text in texts]
            return {**watch.read(), "found": [[hit["id"] for hit in hits] for hits in found]}

        serve(search)


Scores = dict[tuple[str, str], "np.ndarray[Any, np.dtype[np.float64]]"]
"""Mode and set → the `scores` of each of its questions, one row a question."""


def ask_all(
    subjects: dict[str, Subject], questions: list[Question], rerankers: Sequence[str]
) -> dict[str, Scores]:
    """Ask every question in every mode; print each checkout's table."""
    result: dict[str, Scores] = {name: {} for name in subjects}
    spent: dict[tuple[str, str, str], float] = {}
    for rerank, (mode, value) in product(rerankers, MODES.items()):
        label = f"{mode}, reranked" if rerank else mode
        for turn, dataset in enumerate(DATASETS):
            asked = [each for each in questions if each.dataset == dataset]
            texts = [each.text for each in asked]
            for name in in_turns(list(subjects), turn):
                print(f"{label}, {dataset}, {name}", file=sys.stderr)
                reply = subjects[name].ask(texts=texts, mode=value, rerank=rerank)
                result[name][label, dataset] = np.array(
                    [
                        scores(hits, each.wanted, each.every)
                        for hits, each in zip(reply["found"], asked, strict=True)
                    ]
                )
                spent[name, label, dataset] = reply["cpu_seconds"] / len(asked) * 1000
    for name, of_one in result.items():
        print(f"\n**{name}**\n\n| set | mode | {' | '.join(MEASURES)} | CPU ms a query |")
        print("|" + " --- |" * 7)
        for label in dict.fromkeys(label for label, _ in of_one):
            means = [of_one[label, dataset].mean(axis=0) for dataset in DATASETS]
            for dataset, each in zip(DATASETS, means, strict=True):
                print(row(dataset, label, each, f"{spent[name, label, dataset]:.1f}"))
            print(row("mean", label, np.nanmean(means, axis=0), ""))
    return result


def row(dataset: str, label: str, means: Sequence[float], last: str) -> str:
    shown = ["–" if math.isnan(each) else f"{each:.3f}" for each in means]
    return f"| {dataset} | {label} | {' | '.join(shown)} | {last} |"


def compare(title: str, this: Scores, other: Scores) -> None:
    """Print how much more one finds than the other, with intervals."""
    print(f"\n**{title}**\n\n| set | mode | {' | '.join(MEASURES)} |")
    print("|" + " --- |" * 6)
    random = np.random.default_rng(0)
    for label in dict.fromkeys(label for label, _ in this):
        resampled, means = [], []
        for dataset in DATASETS:
            each = this[label, dataset] - other[label, dataset]
            rows_ = random.integers(len(each), size=(RESAMPLES, len(each)))
            resampled.append(np.stack([column[rows_].mean(axis=1) for column in each.T], axis=1))
            means.append(each.mean(axis=0))
            print(difference(dataset, label, means[-1], resampled[-1]))
        every = np.nanmean(resampled, axis=0)
        print(difference("mean", label, np.nanmean(means, axis=0), every))


def difference(dataset: str, label: str, means: Any, resampled: Any) -> str:
    cells = []
    for mean, low, high in zip(means, *np.percentile(resampled, (2.5, 97.5), axis=0), strict=True):
        mark = " **worse**" if high < 0 else " better" if low > 0 else ""
        shown = f"{mean:+.3f} ({low:+.3f} to {high:+.3f}){mark}"
        cells.append("–" if math.isnan(mean) else shown)
    return f"| {dataset} | {label} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rerank", default="", help="name or folder of a cross-encoder")
    parser.add_argument("--share", type=float, default=1.0, help="of each set's rows")
    parser.add_argument("--beside", type=Path, help="folder of another hopgate package")
    parser.add_argument("--store", action="append", default=[], help="ENGINE:NAME; repeatable")
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        answer(given.part, *given.store)
        return
    if given.beside and given.store:
        parser.error("give --beside or --store")
    if not given.data:
        parser.error("the following arguments are required: --data")
    passages, questions = collect(given.data, given.share)
    counts = {name: sum(q.dataset == name for q in questions) for name in DATASETS}
    print(f"{len(passages)} passages; questions: {counts}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "passages.json").write_text(json.dumps(passages), encoding="utf-8")
        if given.store:
            from hopgate.retrievers.building import build_from_passages

            build_from_passages(passages, Path(folder, "index"))
        subjects = {
            tree.name: Subject(tree, __file__, ["--part", folder]) for tree in trees(given.beside)
        }
        for store in given.store:
            part = ["--part", folder, "--store", store]
            subjects[store] = Subject(next(iter(trees(None))), __file__, part)
        rerankers = ["", given.rerank] if given.rerank else [""]
        found = ask_all(subjects, questions, rerankers)
        for subject in subjects.values():
            subject.close()
    if given.beside:
        compare("this - beside", found["this"], found["beside"])
    for store in given.store:
        compare(f"{store} - folder", found[store], found["this"])


if __name__ == "__main__":
    main()
