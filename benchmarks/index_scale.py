"""An index of a million passages: what it takes to build, to open and to search.

    python benchmarks/index_scale.py --work DIR [--size 1000000] [--threads 1] > scale.json

Vectors are clustered and made without an encoder, so that the figures are those of the index. Each
part runs in a process of its own. What a part found is kept in DIR: the same command, started
again, goes on with what is missing, and another --threads finds the indexes built.

Queries are asked one at a time from each thread. `ours` includes the lookup of the passages (in
three modes), `plain` is FAISS alone with the same file and settings and gives positions, and
`langchain` is LangChain's in-memory FAISS store, which gives its documents.

`peak_mib` counts mapped pages that were touched, which the system can take back; `private_mib` is
the most that was the process's own. `cpu_ms` is what a query took of a processor: on a machine
that does other work, the better figure of the two.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import synthetic
from processes import memory_kib, seconds_since_start

K = 10
EXTRA = 1000
"""Vectors that are written for index_update.py to add."""
EXACT_QUERIES = 200
"""How many of the queries are asked where each looks at every vector."""


class Memory:
    """What this process has taken, watched by a thread of its own."""

    def __init__(self) -> None:
        """Begin to watch."""
        self._most = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._most = max(self._most, memory_kib("RssAnon"))
            time.sleep(0.1)

    def report(self) -> dict[str, int]:
        """Say what it came to."""
        return {"peak_mib": memory_kib("VmHWM") >> 10, "private_mib": self._most >> 10}


def build(work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    from hopgate.retrievers.building import build_from_passages

    memory, said = Memory(), list[str]()
    out = work / folder_name(factory)
    stages: dict[str, list[float]] = {}
    began, last = clocks(), clocks()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = clocks()
        spent = stages.setdefault(stage, [0.0, 0.0])
        stages[stage] = [s + n - b for s, n, b in zip(spent, now, last, strict=True)]
        last = now

    report = build_from_passages(
        synthetic.passages(0, size),
        out,
        synthetic.StoredEncoder(work),
        progress,
        None if factory == "auto" else factory,
        said.append,
    )
    manifest = json.loads((out / "manifest.json").read_text())
    return {
        "factory": report.factory,
        "plan": said,
        **elapsed(began, clocks()),
        "until_stage_ended": {name: elapsed((0, 0), spent) for name, spent in stages.items()},
        **memory.report(),
        "search": manifest["search"],
        "mib": {
            name: sum(e["bytes"] for n, e in manifest["files"].items() if n.startswith(name)) >> 20
            for name in ("faiss.index", "vectors.npy", "passages.sqlite", "bm25")
        },
    }


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def elapsed(began: Any, ended: Any) -> dict[str, float]:
    names = ("seconds", "cpu_seconds")
    return {n: round(e - b, 1) for n, b, e in zip(names, began, ended, strict=True)}


def cold(work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    """Time from the start of a process to its first answer, with the files not in memory."""
    for file in work.joinpath(folder_name(factory)).rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return warm(work, size, factory, threads)


def warm(work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    """Time from the start of a process to its first answer; the encoder is not part of it."""
    from hopgate.retrievers.index import Index

    imported = seconds_since_start()
    index = Index.open(work / folder_name(factory), synthetic.StoredEncoder(work))
    opened = seconds_since_start()
    index.search([synthetic.query(0)], K)
    return {
        "imported_s": round(imported, 2),
        "opened_s": round(opened, 2),
        "answered_s": round(seconds_since_start(), 2),
    }


def ours(work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    from hopgate.retrievers.index import Index
    from hopgate.retrievers.sources import MODES

    memory = Memory()
    index = Index.open(work / folder_name(factory), synthetic.StoredEncoder(work))
    modes = {}
    for mode in MODES:

        def ask(text: str, mode: Any = mode) -> list[int]:
            (hits,) = index.search([text], K, mode)
            return [int(hit["title"]) for hit in hits]

        modes[mode] = measured(work, ask, factory, threads, against_truth=mode == "dense")
    return modes["dense"] | {mode: modes[mode] for mode in MODES[1:]} | memory.report()


def plain(work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    """The same FAISS file and settings, without passages and without scoring anew."""
    import faiss

    memory = Memory()
    manifest = json.loads((work / folder_name(factory) / "manifest.json").read_text())
    version = work / folder_name(factory) / f"v{manifest['version']:06d}"
    index = faiss.read_index(str(version / "faiss.index"))
    settings = manifest["search"]
    parameters = None
    if "nprobe" in settings:
        parameters = faiss.SearchParametersIVF(nprobe=settings["nprobe"])
    elif "efSearch" in settings:
        parameters = faiss.SearchParametersHNSW(efSearch=settings["efSearch"])
    encoder = synthetic.StoredEncoder(work)

    def ask(text: str) -> list[int]:
        _, found = index.search(encoder.encode_queries([text]), K, params=parameters)
        return list(found[0].tolist())

    return measured(work, ask, factory, threads) | memory.report()


def langchain(work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    """LangChain's in-memory FAISS store: exact search, documents in a dict."""
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

    memory, encoder, began = Memory(), synthetic.StoredEncoder(work), clocks()
    index = faiss.IndexFlatIP(synthetic.DIMENSION)
    index.add(np.load(work / "vectors.npy", mmap_mode="r")[:size])
    documents = {
        passage["id"]: Document(
            passage["text"],
            id=passage["id"],
            metadata={"title": passage["title"], "source": passage["source"]},
        )
        for passage in synthetic.passages(0, size)
    }
    store = FAISS(Stored(), index, InMemoryDocstore(documents), dict(enumerate(documents)))
    built = elapsed(began, clocks())

    def ask(text: str) -> list[int]:
        found = store.similarity_search_with_score(text, k=K)
        return [int(document.metadata["title"]) for document, _ in found]

    return built | measured(work, ask, factory, threads) | memory.report()


def measured(
    work: Path,
    ask: Callable[[str], list[int]],
    factory: str,
    threads: int,
    against_truth: bool = True,
) -> dict[str, Any]:
    """Ask every query, once to warm up and once by the clock; give speed and recall."""
    import faiss

    faiss.omp_set_num_threads(1)
    truth = np.load(work / "truth.npy")
    truth = truth[:EXACT_QUERIES] if factory == "Flat" else truth
    texts = [synthetic.query(number) for number in range(len(truth))]
    found = [ask(text) for text in texts]
    with ThreadPoolExecutor(threads) as pool:
        began = clocks()
        list(pool.map(ask, texts))
        wall, cpu = (e - b for b, e in zip(began, clocks(), strict=True))
    shares = [len(set(n) & set(t.tolist())) / K for n, t in zip(found, truth, strict=True)]
    recall = {"recall_at_10": round(float(np.mean(shares)), 4)} if against_truth else {}
    speed = {"qps": len(texts) / wall, "cpu_ms": cpu / len(texts) * 1000}
    return recall | {name: round(value, 2) for name, value in speed.items()}


Part = Callable[[Path, int, str, int], dict[str, Any]]
ONCE: dict[str, Part] = {"build": build, "cold": cold, "warm": warm}
SEARCHES: dict[str, Part] = {"ours": ours, "plain": plain, "langchain": langchain}


def folder_name(factory: str) -> str:
    return "index-" + factory.replace(",", "-")


def apart(part: str, work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    """Run a part in a process of its own, unless what it finds is known."""
    each = "" if part in ONCE else f"-{threads}"
    kept = work / f"{part}-{folder_name(factory)}{each}.json"
    if not kept.exists():
        print(kept.stem, file=sys.stderr)
        command = [sys.executable, __file__, "--part", part, "--factory", factory]
        command += ["--size", str(size), "--work", str(work), "--threads", str(threads)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        kept.write_text(done.stdout)
    return dict(json.loads(kept.read_text()))


def prepare(work: Path, size: int, queried: int) -> None:
    """Write vectors, queries, and which of the vectors are nearest to each."""
    from hopgate.retrievers.factory import exact_search

    if (work / "truth.npy").exists():
        return
    synthetic.write(work, size, queried, EXTRA)
    vectors = np.load(work / "vectors.npy", mmap_mode="r")[:size]
    np.save(work / "truth.npy", exact_search(vectors, np.load(work / "queries.npy"), K)[0])


def all_parts(work: Path, size: int, factory: str, threads: int) -> dict[str, Any]:
    result: dict[str, Any] = {"size": size, "dimension": synthetic.DIMENSION, "threads": threads}
    for each in ("Flat", factory):
        parts = [*ONCE, "ours", "plain"]
        result[each] = {part: apart(part, work, size, each, threads) for part in parts}
    result["langchain"] = apart("langchain", work, size, "Flat", threads)
    exact, chosen = result["Flat"]["ours"], result[factory]["ours"]
    result["ratios"] = {
        name: {figure: round(one[figure] / other[figure], 3) for figure in ("qps", "cpu_ms")}
        for name, one, other in (
            ("ours exact / langchain", exact, result["langchain"]),
            ("ours exact / plain", exact, result["Flat"]["plain"]),
            ("ours chosen / plain", chosen, result[factory]["plain"]),
            ("ours chosen / langchain", chosen, result["langchain"]),
        )
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--factory", default="auto", help="what is compared with exact search")
    parser.add_argument("--threads", type=int, default=1, help="that ask at once")
    parser.add_argument(
        "--work", type=Path, help="folder for about 8 KB a passage; default: temporary"
    )
    parser.add_argument("--part", choices=[*ONCE, *SEARCHES], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        part = (ONCE | SEARCHES)[given.part]
        print(json.dumps(part(given.work, given.size, given.factory, given.threads)))
        return
    work = given.work or Path(tempfile.mkdtemp())
    try:
        prepare(work, given.size, given.queries)
        print(json.dumps(all_parts(work, given.size, given.factory, given.threads), indent=1))
    finally:
        if not given.work:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
