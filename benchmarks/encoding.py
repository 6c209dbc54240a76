"""How fast passages are encoded: passages a second of processor time and of wall time.

    python benchmarks/encoding.py [--beside TREE] [--rounds 3] > encoding.md

The passages come from hopgate's own documentation. With `--beside`, two checkouts take turns
(beside.py), each in its own process, and their vectors are compared. `OMP_NUM_THREADS` sets the
number of threads.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from beside import Subject, in_turns, print_table, ratios, serve, trees
from processes import Stopwatch

ROOT = Path(__file__).parents[1]
SCRIPT = str(Path(__file__))


def passages() -> list[Any]:
    """Return the passages of the documentation, as an index would have them."""
    from hopgate.retrievers.documents.reading import load_documents

    return load_documents([ROOT / "docs", ROOT / "README.md", ROOT / "CHANGELOG.md"]).passages


def encoder_process() -> None:
    """Encode on request, and save the vectors to the requested path."""
    from hopgate.retrievers.encoders import load_encoder

    texts, encoder = passages(), load_encoder()
    encoder.encode_passages(texts[:8])

    def encode(out: str) -> dict[str, float]:
        watch = Stopwatch()
        vectors = encoder.encode_passages(texts)
        took = watch.read()
        np.save(out, vectors)
        return {
            "passages": len(texts),
            "a second": round(len(texts) / took["seconds"], 1),
            "a second of processor time": round(len(texts) / took["cpu_seconds"], 1),
        }

    serve(encode)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, help="folder of another hopgate package")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        encoder_process()
        return
    every = trees(given.beside)
    subjects = {tree.name: Subject(tree, SCRIPT, ["--part"]) for tree in every}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in subjects}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, f"{name}.npy") for name in subjects}
        for turn in range(given.rounds):
            for name in in_turns(list(subjects), turn):
                found[name].append(subjects[name].ask(out=str(files[name])))
        for subject in subjects.values():
            subject.close()
        vectors = [np.load(file) for file in files.values()]
    rows: dict[str, Any] = {
        name: max(each, key=lambda row: row["a second"]) for name, each in found.items()
    }
    if given.beside:
        rows["ratio"] = ratios(found["this"], found["beside"], list(rows["this"]))
        rows["largest difference"] = {"passages": f"{np.abs(vectors[0] - vectors[1]).max():.1e}"}
    print_table("Encoding", rows)


if __name__ == "__main__":
    main()
