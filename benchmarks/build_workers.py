"""How much faster workers build an index, and the cost of losing one.

    python benchmarks/build_workers.py --data ../shared/data --work DIR

Alternately builds an index of a few thousand real passages without and with workers, and compares
the indexes. Then it kills a worker in the middle of a build.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hopgate.common.workers import LocalWorkers, Workers
from hopgate.retrievers.building import build_index
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import Parts

LANGUAGES = ("en", "de", "es", "ru")
WAYS = {
    "one process, one thread": (0, 1),
    "one process, two threads": (0, 2),
    "one worker, two threads": (1, 2),
    "two workers, one thread each": (2, 2),
}
"""The number of workers, and their total threads."""
BASIS = "one process, two threads"


# Documents


def rows(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_documents(data: Path, folder: Path, multihop_only: bool) -> Path:
    """Write real texts as one .md for each question, and some as .jsonl."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ["multihop"] if multihop_only else ["multihop", "retrievalqa"]:
        for number, row in enumerate(rows(data / name / "dev.jsonl")):
            found = [each for each in row["context"] if isinstance(each, dict)]
            parts = [f"# {each.get('title', '')}\n\n{each.get('text', '')}" for each in found]
            (folder / f"{name}-{number:03}.md").write_text("\n\n".join(parts) or "nothing")
    with (folder / "xquad.jsonl").open("w", encoding="utf-8") as out:
        for language in LANGUAGES:
            for row in rows(data / "xquad" / f"{language}.dev.jsonl"):
                out.write(json.dumps({"title": row["title"], "text": row["context"]}) + "\n")
    return folder


# Builds


class Counting:
    """Counts the pieces sent to workers, and those sent again."""

    def __init__(self, workers: Workers) -> None:
        """Start counting."""
        self.sent: list[int] = []
        call = workers._call

        def counted(function: str, message: Any) -> Any:
            self.sent.append(hash(repr(message)))
            return call(function, message)

        workers._call = counted  # type: ignore[method-assign]

    @property
    def summary(self) -> str:
        """The counts, in words."""
        pieces = len(set(self.sent))
        return f"{pieces} pieces, {len(self.sent) - pieces} done again"


def build(docs: Path, out: Path, workers: int, threads: int) -> tuple[float, float]:
    """Build in a new process; return seconds, and seconds of processor time with its workers."""
    shutil.rmtree(out, ignore_errors=True)
    shared = ["--workers", str(workers)] if workers else []
    begun, used = time.monotonic(), processor_time()
    subprocess.run(
        [sys.executable, "-m", "hopgate", "index", "build", docs, "--out", out, "--json", *shared],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        check=True,
    )
    return time.monotonic() - begun, processor_time() - used


def processor_time() -> float:
    """Return the processor time of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def difference(one: Path, other: Path) -> float:
    """Return the largest difference between vectors; everything else must be equal."""
    found = []
    for folder in (one, other):
        manifest = info(folder)
        _, words, vectors = Parts.open(folder, manifest)
        keys = words.keys().tolist()
        kept = ("encoder", "factory", "language", "mode", "mode_reason", "passages", "sources")
        about = [manifest[name] for name in kept]  # type: ignore[literal-required]
        found.append(((about, keys, list(words.read(keys))), vectors.vectors(keys)))
    (named, ours), (others, theirs) = found
    assert named == others, "the indexes differ"
    return float(np.abs(ours - theirs).max())


def times(docs: Path, work: Path, rounds: int) -> None:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, (workers, threads) in WAYS.items():
            seconds[name].append(build(docs, work / re.sub(r"\W", "-", name), workers, threads))
            wall, processor = seconds[name][-1]
            print(f"{name}: {wall:.1f} s, {processor:.1f} s of processor time", flush=True)
    for name, each in seconds.items():
        pairs = list(zip(each, seconds[BASIS], strict=True))
        wall, processor = (
            statistics.median(one[at] / basis[at] for one, basis in pairs) for at in (0, 1)
        )
        apart = difference(work / re.sub(r"\W", "-", BASIS), work / re.sub(r"\W", "-", name))
        print(
            f"{name}: {wall:.2f} of the time and {processor:.2f} of the processor time of {BASIS}; "
            f"vectors differ by at most {apart:.1e}"
        )


def with_a_kill(docs: Path, work: Path, workers: Workers, kill: Any, name: str) -> None:
    """Build, call `kill` after the first tenth of the vectors, and compare."""
    out, counting, killed = work / "killed", Counting(workers), []
    shutil.rmtree(out, ignore_errors=True)

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "encoding passages" and done > total / 10 and not killed:
            killed.append(kill())

    begun = time.monotonic()
    report = build_index([docs], out, progress=progress, workers=workers)
    seconds = time.monotonic() - begun
    apart = difference(work / "alone", out)
    print(
        f"{name}: killed {killed}, {report.passages} passages in {seconds:.1f} s, "
        f"{counting.summary}; vectors differ by at most {apart:.1e}",
        flush=True,
    )


def kill_all(top: psutil.Process) -> str:
    """Kill a process and its children; say which."""
    processes = [top, *top.children(recursive=True)]
    names = [each.name() for each in processes]
    for each in processes:
        each.kill()
    return f"{len(names)} processes ({', '.join(names)})"


def a_worker() -> psutil.Process:
    found = psutil.Process().children()
    return next(each for each in found if "hopgate.common.workers" in each.cmdline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="Only a part of the passages.")
    given = parser.parse_args()
    docs = write_documents(given.data, given.work / "docs", given.small)
    if given.rounds:
        times(docs, given.work, given.rounds)
    build(docs, given.work / "alone", 0, 2)
    with closing(LocalWorkers(2)) as workers:
        with_a_kill(docs, given.work, workers, lambda: kill_all(a_worker()), "two workers")


if __name__ == "__main__":
    main()
