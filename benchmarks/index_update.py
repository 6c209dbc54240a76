"""Changing a large index: add passages and delete them again, while others search.

    python benchmarks/index_update.py --work DIR [--size 1000000] [--beside TREE] > update.md

DIR may be index_scale.py's, with the index already built; with `--beside`, two checkouts of hopgate
are measured alternately (beside.py). Writer, readers and watcher are separate processes.

Each of two readers queries its open index ten times a second, in the default mode, and reopens it
when a change was published. The results count answers, faults, answers with fewer than ten hits,
and waits including reopening (with the processor time of the longest, which on a busy core is much
less).

Outside the timings, readers and watcher also look for half changes: an open index must have none or
all of the new passages, in its length, in a dense and in a BM25 search for their source. A reader
checks whenever it opens the index and once a second. The watcher does nothing else: it opens the
index and checks whenever one of its files or folders appears, disappears or is replaced, at a lower
priority.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import index_scale
import synthetic
from beside import Tree, in_turns, print_table, ratios, run_part, trees
from processes import Memory, Stopwatch

READERS = 2
EVERY_S = 0.1
WATCH_EVERY_S = 0.005
K = 10
NEW = "new.txt"
PUBLISHING = {"manifest.json", "meta.json"}
"""Names of the files whose replacement publishes a change: hopgate's own and Tantivy's."""

Figures = dict[str, Any]
State = tuple[int, int, int]
"""How many of the new passages an open index has: in its length, dense and by BM25."""


def new_passages(given: argparse.Namespace) -> list[Any]:
    return list(synthetic.passages(given.size, given.size + given.count, source=NEW))


class Look:
    """A check for half changes.

    Args:
        given: `size` and `count`: the passages before a change, and those added.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        """Choose the word that is in most of the new passages."""
        self._size, self._count = given.size, given.count
        texts = (set(passage["text"].split()) for passage in new_passages(given))
        words = Counter(word for text in texts for word in text - set(synthetic.STOP_WORDS))
        self._word, holding = words.most_common(1)[0]
        self._all = (self._count, self._count, holding)
        self.states: Counter[State] = Counter()

    def __call__(self, index: Any) -> None:
        """Count the new passages that an open index has."""
        dense, bm25 = (
            len(index.search([f"0 {self._word}"], self._count + 1, mode, {"source": NEW})[0])
            for mode in ("dense", "bm25")
        )
        self.states[len(index) - self._size, dense, bm25] += 1

    def report(self) -> Figures:
        """Count the checks, and those that saw half a change."""
        half = {state: n for state, n in self.states.items() if state not in ((0, 0, 0), self._all)}
        return {
            "looks_none": self.states[0, 0, 0],
            "looks_all": self.states[self._all],
            "half_changes": sum(half.values()),
            "half_states": {str(state): times for state, times in half.items()},
        }


def published(index: Path) -> object:
    """Return the stamps of the files that publish a change: they differ after each one."""
    folders = os.walk(index)
    return stamps([Path(at, name) for at, _, names in folders for name in PUBLISHING & {*names}])


def touched(index: Path) -> object:
    """Return a value that changes with every file that appears, disappears or is replaced."""
    return published(index), stamps([Path(at) for at, _, _ in os.walk(index)])


def stamps(files: list[Path]) -> list[tuple[str, int, int]]:
    found = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue
        found.append((str(file), stat.st_mtime_ns, stat.st_ino))
    return sorted(found)


def read(given: argparse.Namespace) -> Figures:
    """Search until a line comes in."""
    from hopgate.retrievers.index.reader import Index

    encoder, look = synthetic.StoredEncoder(given.work), Look(given)
    opened, seen, number = None, None, 0
    waits: list[tuple[float, float]] = []  # wall and processor time
    hits_of: list[int] = []
    versions: Counter[int] = Counter()
    openings, faults = 0, list[str]()
    while not wait(EVERY_S):
        watch = Stopwatch()
        try:
            now = published(given.index)
            anew = now != seen
            if opened is None or anew:
                opened, seen, openings = Index.open(given.index, encoder), now, openings + 1
            (hits,) = opened.search([synthetic.query(number % 100)], K)
            taken = watch.read()
            if anew or number % 10 == 0:
                look(opened)
        except Exception as error:  # any fault counts
            faults.append(f"{type(error).__name__}: {error}")
            if not number:
                raise
            continue
        if number:
            waits.append((taken["seconds"], taken["cpu_seconds"]))
            hits_of.append(len(hits))
            versions[len(opened)] += 1
        else:
            print("ready", flush=True)
        number += 1
    slowest = max(waits)
    return {
        "answers": len(waits),
        "faults": len(faults),
        "short_answers": sum(hits < K for hits in hits_of),
        "openings": openings,
        "ms_median": round(statistics.median(wall for wall, _ in waits) * 1000, 1),
        "ms_longest": round(slowest[0] * 1000, 1),
        "cpu_ms_of_longest": round(slowest[1] * 1000, 1),
        "over_100_ms": sum(wall > 0.1 for wall, _ in waits),
        "answers_by_passages": versions,
        "first_faults": faults[:5],
        **look.report(),
    }


def watch(given: argparse.Namespace) -> Figures:
    """Open the index and check it whenever a file in it changes, until a line comes in."""
    from hopgate.retrievers.index.reader import Index

    os.nice(5)
    encoder, look = synthetic.StoredEncoder(given.work), Look(given)
    seen, openings, faults = None, 0, list[str]()
    ready = False
    while not wait(WATCH_EVERY_S):
        if (now := touched(given.index)) == seen:
            continue
        seen, openings = now, openings + 1
        try:
            look(Index.open(given.index, encoder))
        except Exception as error:  # any fault counts
            faults.append(f"{type(error).__name__}: {error}")
        if not ready:
            print("ready", flush=True)
            ready = True
    return {
        "faults": len(faults),
        "openings": openings,
        "first_faults": faults[:5],
        **look.report(),
    }


def wait(seconds: float) -> bool:
    """Return whether a line comes in within that many seconds."""
    import select

    return bool(select.select([sys.stdin], [], [], seconds)[0])


def change(given: argparse.Namespace) -> Figures:
    """Add the new passages, or delete them."""
    from hopgate.retrievers.building import add_passages, delete

    encoder = synthetic.StoredEncoder(given.work)
    new = new_passages(given)
    memory, watch = Memory(), Stopwatch()
    if given.part == "add":
        report = add_passages(new, given.index, encoder)
    else:
        report = delete(given.index, [NEW])
    return {
        **watch.read(),
        **memory.report(),
        "added": report.added,
        "removed": report.removed,
        "encoded": report.encoded,
        "passages": report.passages,
        "disk_mib": index_scale.disk(given.index)["disk_mib"],
    }


def arguments(given: argparse.Namespace, tree: Tree, part: str) -> list[object]:
    index = index_scale.index_of(given, tree, given.factory)
    parts = ["--part", part, "--work", given.work, "--index", index]
    return [*parts, "--size", given.size, "--count", given.count]


def watched(given: argparse.Namespace, tree: Tree, part: str) -> Figures:
    """Make a change while others search."""
    print(f"{part} {given.count}, {tree.name}", file=sys.stderr)
    parts = ["read"] * READERS + ["watch"]
    others = [process(tree, arguments(given, tree, each)) for each in parts]
    for other in others:
        assert other.stdout and other.stdout.readline() == "ready\n"
    result = run_part(tree, __file__, arguments(given, tree, part))
    time.sleep(2)
    seen = [json.loads(other.communicate("stop\n")[0]) for other in others]
    print(json.dumps({"change": result, "others": seen}), file=sys.stderr)
    return {"change": result, "readers": seen[:READERS], "watcher": seen[-1]}


def process(tree: Tree, arguments: list[object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=tree.environment(),
    )


def measure(given: argparse.Namespace, every: list[Tree]) -> Figures:
    """Make each change in turn; return the results for each, by checkout."""
    result: Figures = {}
    for count in given.counts:
        given.count = count
        for turn in range(given.rounds):
            for part in ("add", "delete"):
                for tree in in_turns(every, turn):
                    found = watched(given, tree, part)
                    result.setdefault(f"{part} {count:,}", {}).setdefault(tree.name, []).append(
                        found
                    )
    return result


TIMES = ("seconds", "cpu_seconds", "private_mib", "peak_mib")
SUMS = (
    "answers",
    "faults",
    "short_answers",
    "over_100_ms",
    "half_changes",
    "looks_none",
    "looks_all",
)
LONGEST = ("ms_median", "ms_longest", "cpu_ms_of_longest")


def print_change(name: str, found: dict[str, list[Figures]]) -> None:
    rows: dict[str, Figures] = {}
    for tree, rounds in found.items():
        changes = [each["change"] for each in rounds]
        rows[tree] = index_scale.medians([{key: each[key] for key in TIMES} for each in changes])
        rows[tree]["disk_mib"] = changes[-1]["disk_mib"]
    if "beside" in found:
        this, beside = ([each["change"] for each in found[name]] for name in ("this", "beside"))
        rows["ratio this / beside"] = dict(ratios(this, beside, TIMES))
    print_table(f"{name}, {len(found['this'])} time(s)", rows)
    others: dict[str, Figures] = {}
    for tree, rounds in found.items():
        readers = [reader for each in rounds for reader in each["readers"]]
        watchers = [each["watcher"] for each in rounds]
        for row, all_of in ((f"{tree}, readers", readers), (f"{tree}, watcher", watchers)):
            others[row] = {key: sum(r[key] for r in all_of) for key in SUMS if key in all_of[0]}
            others[row] |= {key: max(r[key] for r in all_of) for key in LONGEST if key in all_of[0]}
    print_table(f"{name}: what readers saw", others)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--factory", default="auto", help="default: what suits the collection")
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[index_scale.EXTRA], help="passages to add"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--beside", type=Path, help="folder of another hopgate package")
    parser.add_argument("--work", type=Path, help="folder for the indexes; default: temporary")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument(
        "--part", choices=["add", "delete", "read", "watch"], help=argparse.SUPPRESS
    )
    parser.add_argument("--index", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps({"read": read, "watch": watch}.get(given.part, change)(given)))
        return
    if not 1 <= min(given.counts) <= max(given.counts) <= index_scale.EXTRA:
        parser.error(f"--counts must be from 1 to {index_scale.EXTRA}")
    every, temporary = trees(given.beside), not given.work
    given.work = given.work or Path(tempfile.mkdtemp())
    given.threads = given.builds = 1
    try:
        index_scale.prepare(given.work, given.size, 1000)
        index_scale.builds(given, every, given.factory)
        result = measure(given, every)
        for name, found in result.items():
            print_change(name, found)
        if given.json:
            given.json.write_text(json.dumps({"size": given.size} | result, indent=1))
    finally:
        if temporary:
            shutil.rmtree(given.work)


if __name__ == "__main__":
    main()
