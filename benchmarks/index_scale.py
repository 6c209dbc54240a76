"""An index of a million passages: what it takes to build, to open and to search.

    python benchmarks/index_scale.py [--size 1000000] [--work DIR] > scale.json

Vectors are clustered and made without an encoder, so that the figures are those of the index. Each
part runs in a process of its own, so that its peak memory is its own. Queries are asked one at a
time from one or two threads; ours include the lookup of the passages, plain FAISS gives positions,
LangChain's in-memory store gives its documents. Peak memory of a search counts the mapped pages
that were touched.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import synthetic

K = 10
THREADS = (1, 2)


def peak_mib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def build(work: Path, size: int, factory: str) -> dict[str, Any]:
    from hopgate.retrievers import build_from_passages

    said: list[str] = []
    out = work / folder_name(factory)
    seconds: dict[str, float] = {}
    began = last = time.perf_counter()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[stage] = seconds.get(stage, 0) + now - last
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
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_until_stage_ended": {name: round(each, 1) for name, each in seconds.items()},
        "peak_mib": peak_mib(),
        "search": manifest["search"],
        "mib": {
            name: round(
                sum(e["bytes"] for n, e in manifest["files"].items() if n.startswith(name)) / 2**20,
                1,
            )
            for name in ("faiss.index", "vectors.npy", "passages.sqlite", "bm25")
        },
    }


def cold(work: Path, size: int, factory: str) -> dict[str, Any]:
    """Time from a new process, before faiss is imported, to the first answer.

    The files are in the page cache, and the encoder is not part of it.
    """
    from hopgate.retrievers import Index

    encoder = synthetic.StoredEncoder(work)
    began = time.perf_counter()
    index = Index.open(work / folder_name(factory), encoder)
    opened = time.perf_counter()
    index.search(["0"], K, "dense")
    return {
        "open_ms": round((opened - began) * 1000, 1),
        "first_answer_ms": round((time.perf_counter() - began) * 1000, 1),
    }


def ours(work: Path, size: int, factory: str) -> dict[str, Any]:
    from hopgate.retrievers import Index

    index = Index.open(work / folder_name(factory), synthetic.StoredEncoder(work))

    def ask(number: int) -> list[int]:
        (hits,) = index.search([str(number)], K, "dense")
        return [int(hit["title"]) for hit in hits]

    return measured(work, ask)


def plain(work: Path, size: int, factory: str) -> dict[str, Any]:
    """The same FAISS file and settings, without passages and without scoring anew."""
    import faiss

    manifest = json.loads((work / folder_name(factory) / "manifest.json").read_text())
    version = work / folder_name(factory) / f"v{manifest['version']:06d}"
    index = faiss.read_index(str(version / "faiss.index"))
    settings = manifest["search"]
    parameters = None
    if "nprobe" in settings:
        parameters = faiss.SearchParametersIVF(nprobe=settings["nprobe"])
    elif "efSearch" in settings:
        parameters = faiss.SearchParametersHNSW(efSearch=settings["efSearch"])
    queries = np.load(work / "queries.npy")

    def ask(number: int) -> list[int]:
        _, found = index.search(queries[number : number + 1], K, params=parameters)
        return list(found[0].tolist())

    return measured(work, ask)


def langchain(work: Path, size: int, factory: str) -> dict[str, Any]:
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
            return list(queries[int(text)].tolist())

    queries = np.load(work / "queries.npy")
    began = time.perf_counter()
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
    built = time.perf_counter() - began

    def ask(number: int) -> list[int]:
        found = store.similarity_search_with_score(str(number), k=K)
        return [int(document.metadata["title"]) for document, _ in found]

    return {"build_seconds": round(built, 1)} | measured(work, ask)


def measured(work: Path, ask: Callable[[int], list[int]]) -> dict[str, Any]:
    """Ask every query from one thread and from two; give speed, recall and peak memory."""
    import faiss

    faiss.omp_set_num_threads(1)
    truth = np.load(work / "truth.npy")
    found = [ask(number) for number in range(len(truth))]  # warms up, too
    shares = [
        len(set(near) & set(row.tolist())) / K for near, row in zip(found, truth, strict=True)
    ]
    speed = {}
    for threads in THREADS:
        with ThreadPoolExecutor(threads) as pool:
            began = time.perf_counter()
            list(pool.map(ask, range(len(truth))))
            speed[f"qps_{threads}"] = round(len(truth) / (time.perf_counter() - began), 1)
    return {"recall_at_10": round(float(np.mean(shares)), 4), **speed, "peak_mib": peak_mib()}


PARTS: dict[str, Callable[[Path, int, str], dict[str, Any]]] = {
    "build": build,
    "cold": cold,
    "ours": ours,
    "plain": plain,
    "langchain": langchain,
}


def folder_name(factory: str) -> str:
    return "index-" + factory.replace(",", "-")


def apart(part: str, work: Path, size: int, factory: str) -> dict[str, Any]:
    """Run a part in a process of its own."""
    print(f"{part} {factory}", file=sys.stderr)
    command = [sys.executable, __file__, "--part", part, "--factory", factory]
    done = subprocess.run(
        [*command, "--size", str(size), "--work", str(work)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")},
    )
    return dict(json.loads(done.stdout))


def all_parts(work: Path, size: int, queried: int, factory: str) -> dict[str, Any]:
    from hopgate.retrievers.factory import exact_search

    synthetic.write(work, size, queried)
    vectors = np.load(work / "vectors.npy", mmap_mode="r")
    np.save(work / "truth.npy", exact_search(vectors, np.load(work / "queries.npy"), K)[0])
    result: dict[str, Any] = {"size": size, "dimension": synthetic.DIMENSION, "queries": queried}
    for each in ("Flat", factory):
        result[each] = {p: apart(p, work, size, each) for p in ("build", "cold", "ours", "plain")}
    result["langchain"] = apart("langchain", work, size, "Flat")
    exact, chosen = result["Flat"]["ours"], result[factory]["ours"]
    result["ratios"] = {
        f"{name}, {threads} threads": round(one[f"qps_{threads}"] / other[f"qps_{threads}"], 3)
        for threads in THREADS
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
    parser.add_argument(
        "--work", type=Path, help="folder for about 8 KB a passage; default: temporary"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(PARTS[given.part](given.work, given.size, given.factory)))
        return
    work = given.work or Path(tempfile.mkdtemp())
    try:
        print(json.dumps(all_parts(work, given.size, given.queries, given.factory), indent=1))
    finally:
        if not given.work:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
