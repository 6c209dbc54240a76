"""An index of a million passages: the cost of building, opening and searching it.

    python benchmarks/index_scale.py --work DIR [--size 1000000] [--beside TREE] > scale.md

With `--beside`, two checkouts of hopgate are measured alternately (beside.py), with ratios:
this one divided by the other, so below 1 means that this one takes less.

Vectors are clustered and made without an encoder, so the figures are for the index alone.
Everything runs in separate processes. Indexes and their build figures are saved in DIR/this and
DIR/beside: running the same command again builds missing indexes (delete DIR/this to rebuild) and
repeats the other measurements. DIR takes about 8 KB per passage and checkout.

Each round sends every query in every mode, in blocks, to one process after the other. Answers
include the passages. `plain` is FAISS alone with the same file and settings, which returns
positions, and `langchain` is LangChain's in-memory FAISS store.

`peak_mib` counts mapped pages that were touched, which the system can take back; `private_mib`
does not. `cpu_ms` is the processor time of a query.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import synthetic
from beside import Subject, Tree, in_turns, print_table, ratios, run_part, serve, trees
from processes import Memory, Stopwatch, seconds_since_start

K = 10
EXTRA = 1000
"""Vectors that are written for index_update.py to add."""
EXACT_QUERIES = 200
"""The number of queries for exhaustive search."""
BLOCKS = 10
"""Blocks of queries in a round; subjects take turns after each block."""
MODES = ("dense", "bm25", "hybrid")
STAGES = ("build", "start", "search")
ALSO = ("plain", "langchain")

Figures = dict[str, Any]


def build(given: argparse.Namespace) -> Figures:
    """Build an index; making the passages is timed separately."""
    import hopgate
    from hopgate.retrievers.building import build_from_passages

    memory, watch = Memory(), Stopwatch()
    passages = Made(synthetic.passages(0, given.size))
    stages: dict[str, dict[str, float]] = {}

    def progress(stage: str, done: int, total: int) -> None:
        stages[stage] = watch.read()

    report = build_from_passages(
        passages,
        given.index,
        synthetic.StoredEncoder(given.work),
        progress=progress,
        factory=None if given.factory == "auto" else given.factory,
    )
    taken = watch.read()
    return {
        "hopgate": hopgate.__file__,
        "factory": report.factory,
        "passages": report.passages,
        **taken,
        "index_cpu_seconds": round(taken["cpu_seconds"] - passages.cpu_seconds, 1),
        "until_stage_ended": stages,
        **memory.report(),
        **disk(given.index),
    }


class Made:
    """Passages, and the processor time that it took to make them."""

    def __init__(self, passages: Iterable[Any]) -> None:
        """Hold passages that are still to be made."""
        self._passages = iter(passages)
        self.cpu_seconds = 0.0

    def __iter__(self) -> Iterator[Any]:
        """Yield them."""
        while True:
            started = time.thread_time()
            passage = next(self._passages, None)
            self.cpu_seconds += time.thread_time() - started
            if passage is None:
                return
            yield passage


def disk(index: Path) -> Figures:
    """Return the size of an index's files, in total and by top-level name."""
    sizes: dict[str, int] = {}
    for file in index.rglob("*"):
        if file.is_file() and not file.is_symlink():
            top = file.relative_to(index).parts
            name = top[1] if top[0].startswith("v0") else top[0]
            sizes[name] = sizes.get(name, 0) + file.stat().st_size
    by_name = {name: round(size / 2**20, 1) for name, size in sorted(sizes.items())}
    return {"disk_mib": sum(sizes.values()) >> 20, "disk_mib_by_name": by_name}


def start(given: argparse.Namespace) -> Figures:
    """Measure the time from the start of a process to its first answer, without an encoder."""
    from hopgate.retrievers.index.reader import Index

    imported = seconds_since_start()
    index = Index.open(given.index, synthetic.StoredEncoder(given.work))
    opened = seconds_since_start()
    index.search([synthetic.query(0)], K)
    return {
        "imported_s": round(imported, 2),
        "opened_s": round(opened, 2),
        "answered_s": round(seconds_since_start(), 2),
        "answered_cpu_s": round(time.process_time(), 2),
    }


def forget(index: Path) -> None:
    """Drop the files of an index from the system's memory."""
    for file in index.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


Ask = Callable[[str, str], list[int]]
"""Returns the numbers of the passages found for a text in a mode."""


def ours(given: argparse.Namespace) -> Ask:
    from hopgate.retrievers.index.reader import Index

    index = Index.open(given.index, synthetic.StoredEncoder(given.work))

    def ask(text: str, mode: Any) -> list[int]:
        (hits,) = index.search([text], K, mode)
        return [int(hit["title"]) for hit in hits]

    return ask


def plain(given: argparse.Namespace) -> Ask:
    """Return FAISS's own search of the largest FAISS file of an index, with the same settings."""
    import faiss

    files = [f for f in given.index.rglob("*") if f.name == "faiss.index" or f.suffix == ".faiss"]
    index = faiss.read_index(str(max(files, key=lambda file: file.stat().st_size)))
    parameters = None
    if nprobe := setting(given.index, "nprobe"):
        parameters = faiss.SearchParametersIVF(nprobe=nprobe)
    elif ef_search := setting(given.index, "efSearch"):
        parameters = faiss.SearchParametersHNSW(efSearch=ef_search)
    encoder = synthetic.StoredEncoder(given.work)

    def ask(text: str, mode: str) -> list[int]:
        _, found = index.search(encoder.encode_queries([text]), K, params=parameters)
        return list(found[0].tolist())

    return ask


def setting(index: Path, name: str) -> int | None:
    """Find a setting anywhere in the description of an index."""
    from hopgate.retrievers.index.manifest import info

    rest: list[Any] = [json.loads(json.dumps(info(index), default=vars))]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            if isinstance(each.get(name), int):
                return int(each[name])
            rest += each.values()
        elif isinstance(each, list):
            rest += each
    return None


def langchain(given: argparse.Namespace) -> Ask:
    """Return the search of LangChain's in-memory FAISS store: exact, documents in a dict."""
    import faiss
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings

    class Stored(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise NotImplementedError

        def embed_query(self, text: str) -> list[float]:
            (vector,) = encoder.encode_queries([text]).tolist()
            return list(vector)

    encoder, watch = synthetic.StoredEncoder(given.work), Stopwatch()
    index = faiss.IndexFlatIP(synthetic.DIMENSION)
    index.add(np.load(given.work / "vectors.npy", mmap_mode="r")[: given.size])
    documents = {
        passage["id"]: Document(
            passage["text"],
            id=passage["id"],
            metadata={"title": passage["title"], "source": passage["source"]},
        )
        for passage in synthetic.passages(0, given.size)
    }
    store = FAISS(Stored(), index, InMemoryDocstore(documents), dict(enumerate(documents)))
    print("langchain, built:", watch.read(), file=sys.stderr)

    def ask(text: str, mode: str) -> list[int]:
        found = store.similarity_search_with_score(text, k=K)
        return [int(document.metadata["title"]) for document, _ in found]

    return ask


SEARCHES: dict[str, Callable[[argparse.Namespace], Ask]] = {
    "ours": ours,
    "plain": plain,
    "langchain": langchain,
}


def answer(given: argparse.Namespace) -> None:
    """Answer requests for blocks of queries, and for the memory they took."""
    import faiss

    faiss.omp_set_num_threads(1)
    memory = Memory()
    ask = SEARCHES[given.part](given)

    def block(mode: str = "", first: int = 0, last: int = 0) -> Figures:
        if not mode:
            return {**memory.report()}
        texts = [synthetic.query(number) for number in range(first, last)]
        with ThreadPoolExecutor(given.threads) as pool:
            watch = Stopwatch()
            found = list(pool.map(lambda text: ask(text, mode), texts))
            return {**watch.read(), "found": found}

    serve(block)


def folder_name(factory: str) -> str:
    return "index-" + factory.replace(",", "-")


def index_of(given: argparse.Namespace, tree: Tree, factory: str) -> Path:
    return Path(given.work, tree.name, folder_name(factory))


def arguments(given: argparse.Namespace, tree: Tree, factory: str, part: str) -> list[object]:
    """Return the arguments of a part of this script."""
    index = index_of(given, tree, factory)
    parts = ["--part", part, "--work", given.work, "--index", index, "--factory", factory]
    return [*parts, "--size", given.size, "--threads", given.threads]


def builds(given: argparse.Namespace, every: list[Tree], factory: str) -> dict[str, list[Figures]]:
    """Build the indexes that are missing; return the figures of all builds, by checkout."""
    found: dict[str, list[Figures]] = {tree.name: [] for tree in every}
    for turn in range(given.builds):
        for tree in in_turns(every, turn):
            index = index_of(given, tree, factory)
            saved = index.parent / f"build-{index.name}-{turn + 1}.json"
            if not saved.exists():
                print(f"build {turn + 1}, {tree.name}, {factory}", file=sys.stderr)
                index.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(index, ignore_errors=True)
                figures = run_part(tree, __file__, arguments(given, tree, factory, "build"))
                saved.write_text(json.dumps(figures, indent=1))
            found[tree.name].append(json.loads(saved.read_text()))
    return found


def starts(given: argparse.Namespace, every: list[Tree], factory: str) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for turn in range(given.rounds):
        for cold in (True, False):
            for tree in in_turns(every, turn):
                print(f"start {turn + 1}, {tree.name}, {factory}", file=sys.stderr)
                if cold:
                    forget(index_of(given, tree, factory))
                figures = run_part(tree, __file__, arguments(given, tree, factory, "start"))
                found.setdefault(f"{tree.name}, {'cold' if cold else 'warm'}", []).append(figures)
    return found


def searches(given: argparse.Namespace, every: list[Tree], factory: str) -> Figures:
    """Ask all queries in all modes, in turns."""
    truth = np.load(given.work / "truth.npy")
    truth = truth[:EXACT_QUERIES] if factory == "Flat" else truth
    subjects = {
        tree.name: Subject(tree, __file__, arguments(given, tree, factory, "ours"))
        for tree in every
    }
    for part in given.also:
        subjects[part] = Subject(every[0], __file__, arguments(given, every[0], factory, part))
    result: Figures = {}
    for mode in MODES:
        print(f"search, {mode}, {factory}", file=sys.stderr)
        asked = {n: s for n, s in subjects.items() if mode == "dense" or n not in ALSO}
        found = {n: s.ask(mode=mode, last=len(truth))["found"] for n, s in asked.items()}
        result[mode] = {name: {"rounds": []} for name in asked}
        for turn in range(given.rounds):
            for name, figures in one_round(asked, mode, len(truth), turn).items():
                result[mode][name]["rounds"].append(figures)
        for name in asked:
            result[mode][name]["same_as_this"] = shared(found[name], found["this"])
            if mode == "dense":
                result[mode][name]["recall_at_10"] = shared(found[name], truth.tolist())
    result["memory"] = {name: subject.ask() for name, subject in subjects.items()}
    for subject in subjects.values():
        subject.close()
    return result


def one_round(asked: dict[str, Subject], mode: str, count: int, turn: int) -> dict[str, Figures]:
    """Ask all queries once; return milliseconds a query for each subject."""
    spent = {name: [0.0, 0.0] for name in asked}
    edges = np.linspace(0, count, BLOCKS + 1, dtype=int).tolist()
    for number, (first, last) in enumerate(pairwise(edges)):
        for name in in_turns(list(asked), turn + number):
            reply = asked[name].ask(mode=mode, first=first, last=last)
            spent[name][0] += reply["seconds"] * 1000 / count
            spent[name][1] += reply["cpu_seconds"] * 1000 / count
    return {name: {"ms": wall, "cpu_ms": cpu} for name, (wall, cpu) in spent.items()}


def shared(found: list[list[int]], others: list[list[int]]) -> float:
    """Return the mean share of the first K of the others that was found too."""
    shares = [len(set(a) & set(b)) / K for a, b in zip(found, others, strict=True)]
    return round(float(np.mean(shares)), 4)


def prepare(work: Path, size: int, queried: int) -> None:
    """Write vectors, queries, and which of the vectors are nearest to each."""
    if (work / "truth.npy").exists():
        return
    synthetic.write(work, size, queried, EXTRA)
    vectors = np.load(work / "vectors.npy", mmap_mode="r")[:size]
    np.save(work / "truth.npy", nearest(vectors, np.load(work / "queries.npy")))


def nearest(vectors: Any, queries: Any) -> Any:
    """Return the positions of the K vectors of the highest inner product with each query."""
    import faiss

    heap = faiss.ResultHeap(len(queries), K, keep_max=True)
    for first in range(0, len(vectors), 100_000):
        block = np.ascontiguousarray(vectors[first : first + 100_000])
        scores, found = faiss.knn(queries, block, K, metric=faiss.METRIC_INNER_PRODUCT)
        heap.add_result(scores, found + first)
    heap.finalize()
    return heap.I


def measure(given: argparse.Namespace, every: list[Tree], factory: str) -> Figures:
    """Run the requested measurements; print each stage's tables as it ends."""
    result: Figures = {"build": builds(given, every, factory)}
    print_builds(factory, result["build"])
    if "start" in given.stages:
        result["start"] = starts(given, every, factory)
        rows = {name: medians(rounds) for name, rounds in result["start"].items()}
        print_table(f"{factory}: from the start of a process to its first answer", rows)
    if "search" in given.stages:
        result["search"] = searches(given, every, factory)
        print_searches(factory, result["search"])
    return result


COSTS = ("seconds", "cpu_seconds", "index_cpu_seconds", "peak_mib", "private_mib", "disk_mib")


def print_builds(factory: str, found: dict[str, list[Figures]]) -> None:
    rows = {
        name: {"factory": rounds[0]["factory"], **medians([pick(each) for each in rounds])}
        for name, rounds in found.items()
    }
    if "beside" in found:
        rows["ratio"] = {"factory": "", **ratios(found["this"], found["beside"], COSTS)}
    print_table(f"{factory}: build, {len(found['this'])} time(s)", rows)
    print_table(
        f"{factory}: MiB on disk",
        {n: rounds[-1]["disk_mib_by_name"] for n, rounds in found.items()},
    )


def pick(figures: Figures) -> Figures:
    return {name: figures[name] for name in COSTS if name in figures}


def print_searches(factory: str, found: Figures) -> None:
    for mode in MODES:
        each, rows = found[mode], dict[str, Figures]()
        for name, figures in each.items():
            rest = {key: value for key, value in figures.items() if key != "rounds"}
            rows[name] = medians(figures["rounds"]) | rest
            if mode == "dense":
                rows[name] |= found["memory"][name]
        for other in [name for name in each if name != "this"]:
            pair = each["this"]["rounds"], each[other]["rounds"]
            rows[f"ratio this / {other}"] = dict(ratios(*pair, ("ms", "cpu_ms")))
        print_table(f"{factory}: search, {mode}", rows)


def medians(rounds: list[Figures]) -> Figures:
    names = rounds[0].keys()
    return {name: round(statistics.median([r[name] for r in rounds]), 3) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument(
        "--factory", action="append", help="may be given twice; default: Flat and auto"
    )
    parser.add_argument("--threads", type=int, default=1, help="that ask at once")
    parser.add_argument("--rounds", type=int, default=3, help="of starts and searches")
    parser.add_argument("--builds", type=int, default=1, help="of each index")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--also", nargs="*", choices=ALSO, default=("plain",))
    parser.add_argument("--beside", type=Path, help="folder of another hopgate package")
    parser.add_argument("--work", type=Path, help="folder for the indexes; default: temporary")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--part", choices=["build", "start", *SEARCHES], help=argparse.SUPPRESS)
    parser.add_argument("--index", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        given.factory = given.factory[0]
        if given.part in SEARCHES:
            answer(given)
        else:
            print(json.dumps(build(given) if given.part == "build" else start(given)))
        return
    every, temporary = trees(given.beside), not given.work
    given.work = given.work or Path(tempfile.mkdtemp())
    try:
        prepare(given.work, given.size, given.queries)
        result = {each: measure(given, every, each) for each in given.factory or ("Flat", "auto")}
        if given.json:
            given.json.write_text(json.dumps({"size": given.size} | result, indent=1))
    finally:
        if temporary:
            shutil.rmtree(given.work)


if __name__ == "__main__":
    main()
