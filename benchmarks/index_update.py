"""Changing a large index: add 1,000 passages to N, delete 1,000, while readers search.

    python benchmarks/index_update.py [--size 1000000] [--factory F] [--work DIR] > update.json

Two threads search all the while, each with the version it opened; they open anew when the manifest
has changed. Counted is what they saw: answers, faults, the longest wait, and versions.
"""

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import synthetic

from hopgate.retrievers import Index, add_passages, build_from_passages, delete, info

CHANGED = 1000
K = 10


class Readers:
    """Threads that search an index until they are stopped."""

    def __init__(self, index: Path, encoder: synthetic.StoredEncoder, threads: int = 2) -> None:
        """Start them."""
        self.answers: list[tuple[float, int, int]] = []  # seconds, version, hits
        self.faults: list[str] = []
        self._index, self._encoder = index, encoder
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        opened, seen, number = None, 0, 0
        while not self._stop.is_set():
            began = time.perf_counter()
            try:
                changed = (self._index / "manifest.json").stat().st_mtime_ns
                if opened is None or changed != seen:
                    opened, seen = Index.open(self._index, self._encoder), changed
                (hits,) = opened.search([str(number % 100)], K, "dense")
            except Exception as error:  # any fault counts
                self.faults.append(f"{type(error).__name__}: {error}")
                continue
            version = opened.manifest["version"]
            self.answers.append((time.perf_counter() - began, version, len(hits)))
            number += 1

    def stop(self) -> dict[str, Any]:
        """Stop them, and say what they saw."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        waits = sorted(wait for wait, _, _ in self.answers)
        versions = [version for _, version, _ in self.answers]
        return {
            "answers": len(waits),
            "answers_by_version": {each: versions.count(each) for each in sorted(set(versions))},
            "short_answers": sum(hits < K for _, _, hits in self.answers),
            "faults": self.faults[:5],
            "ms_median": round(waits[len(waits) // 2] * 1000, 2) if waits else None,
            "ms_longest": round(waits[-1] * 1000, 1) if waits else None,
        }


def watched(
    index: Path, encoder: synthetic.StoredEncoder, change: Callable[[], Any]
) -> dict[str, Any]:
    readers = Readers(index, encoder)
    time.sleep(1)
    began = time.perf_counter()
    report = change()
    seconds = time.perf_counter() - began
    time.sleep(1)
    return {
        "seconds": round(seconds, 2),
        "added": report.added,
        "removed": report.removed,
        "encoded": report.encoded,
        "passages": report.passages,
        "readers": readers.stop(),
    }


def run(work: Path, size: int, factory: str | None) -> dict[str, Any]:
    synthetic.write(work, size, 100, extra=CHANGED)
    encoder, index = synthetic.StoredEncoder(work), work / "index"
    began = time.perf_counter()
    build_from_passages(synthetic.passages(0, size), index, encoder, factory=factory)
    result: dict[str, Any] = {
        "size": size,
        "factory": info(index)["factory"],
        "build_seconds": round(time.perf_counter() - began, 1),
    }
    new = list(synthetic.passages(size, size + CHANGED, source="new.txt"))
    result["add"] = watched(index, encoder, lambda: add_passages(new, index, encoder))
    result["delete"] = watched(index, encoder, lambda: delete(index, ["new.txt"]))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--factory", help="default: what suits the collection")
    parser.add_argument(
        "--work", type=Path, help="folder for about 8 KB a passage; default: temporary"
    )
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp())
    try:
        print(json.dumps(run(work, given.size, given.factory), indent=1))
    finally:
        if not given.work:
            shutil.rmtree(work)


if __name__ == "__main__":
    main()
