"""Changing a large index: add 1,000 passages to N, delete 1,000, while readers search.

    python benchmarks/index_update.py --work DIR [--size 1000000] [--factory auto] > update.json

DIR may be that of index_scale.py, which has built the index. The writer and two readers are
processes of their own. Each reader asks ten times a second, in the default mode, with the version
that it opened, and opens anew when the manifest has changed. Counted is what readers saw: answers,
faults, the longest wait (with opening anew), and versions.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import index_scale
import synthetic

from hopgate.retrievers.building import BuildReport, add_passages, build_from_passages, delete
from hopgate.retrievers.index import Index

CHANGED = index_scale.EXTRA
READERS = 2
EVERY_S = 0.1
K = 10


def read(index: Path, encoder: synthetic.StoredEncoder) -> dict[str, Any]:
    """Search until a line comes in."""
    import select

    opened, seen, number = None, 0, 0
    answers: list[tuple[float, int, int]] = []  # seconds, version, hits
    faults: list[str] = []
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        began = time.perf_counter()
        try:
            changed = (index / "manifest.json").stat().st_mtime_ns
            if opened is None or changed != seen:
                opened, seen = Index.open(index, encoder), changed
            (hits,) = opened.search([synthetic.query(number % 100)], K)
        except Exception as error:  # any fault counts
            faults.append(f"{type(error).__name__}: {error}")
            continue
        if not number:
            print("ready", flush=True)
            began = time.perf_counter()
        answers.append((time.perf_counter() - began, opened.manifest["version"], len(hits)))
        number += 1
    waits = sorted(wait for wait, _, _ in answers)
    versions = [version for _, version, _ in answers]
    return {
        "answers": len(waits),
        "by_version": {each: versions.count(each) for each in sorted(set(versions))},
        "short_answers": sum(hits < K for _, _, hits in answers),
        "faults": faults[:5],
        "ms_median": round(waits[len(waits) // 2] * 1000, 1),
        "ms_longest": round(waits[-1] * 1000, 1),
    }


def changed(change: Callable[[], BuildReport]) -> dict[str, Any]:
    memory, began = index_scale.Memory(), index_scale.clocks()
    report = change()
    return {
        **index_scale.elapsed(began, index_scale.clocks()),
        **memory.report(),
        "added": report.added,
        "removed": report.removed,
        "encoded": report.encoded,
        "passages": report.passages,
    }


def process(part: str, given: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--part", part, "--work", str(given.work)]
    command += ["--size", str(given.size), "--factory", given.factory]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def watched(part: str, given: argparse.Namespace) -> dict[str, Any]:
    """Make a change while readers search."""
    print(part, file=sys.stderr)
    readers = [process("read", given) for _ in range(READERS)]
    for reader in readers:
        assert reader.stdout and reader.stdout.readline() == "ready\n"
    result = json.loads(process(part, given).communicate()[0])
    time.sleep(2)
    seen = [json.loads(reader.communicate("stop\n")[0]) for reader in readers]
    return {part: result, "readers": seen}


def all_parts(given: argparse.Namespace) -> dict[str, Any]:
    index_scale.prepare(given.work, given.size, 1000)
    index = given.work / index_scale.folder_name(given.factory)
    if not (index / "manifest.json").exists():
        factory = None if given.factory == "auto" else given.factory
        encoder = synthetic.StoredEncoder(given.work)
        build_from_passages(synthetic.passages(0, given.size), index, encoder, factory=factory)
    return {
        "size": given.size,
        "factory": json.loads((index / "manifest.json").read_text())["factory"],
        "changes": [watched("add", given), watched("delete", given)],
    }


def one_part(given: argparse.Namespace) -> dict[str, Any]:
    encoder = synthetic.StoredEncoder(given.work)
    index = given.work / index_scale.folder_name(given.factory)
    new = synthetic.passages(given.size, given.size + CHANGED, source="new.txt")
    if given.part == "add":
        return changed(lambda: add_passages(new, index, encoder))
    if given.part == "delete":
        return changed(lambda: delete(index, ["new.txt"]))
    return read(index, encoder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--factory", default="auto", help="default: what suits the collection")
    parser.add_argument(
        "--work", type=Path, help="folder for about 8 KB a passage; default: temporary"
    )
    parser.add_argument("--part", choices=["add", "delete", "read"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(one_part(given)))
        return
    temporary = not given.work
    given.work = given.work or Path(tempfile.mkdtemp())
    try:
        print(json.dumps(all_parts(given), indent=1))
    finally:
        if temporary:
            shutil.rmtree(given.work)


if __name__ == "__main__":
    main()
