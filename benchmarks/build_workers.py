"""How much faster workers build an index, and what the loss of one costs.

    python benchmarks/build_workers.py --data ../shared/data --work DIR [--ray]

Builds an index of some thousand real passages in one process, with one worker and with two, twice
in turns, and compares the indexes passage by passage. Then it kills a worker in the middle of a
build. With --ray the same on a cluster of two nodes on loopback, one of which is killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

LANGUAGES = ("en", "de", "es", "ru", "zh", "ar")


def rows(file: Path) -> Iterator[dict]:
    with file.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_documents(data: Path, folder: Path) -> None:
    """Write real texts as one .md for each question, and as a .jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("retrievalqa", "multihop"):
        for number, row in enumerate(rows(data / name / "dev.jsonl")):
            parts = [
                f"# {each.get('title', '')}\n\n{each.get('text', '')}"
                for each in row["context"]
                if isinstance(each, dict)
            ]
            (folder / f"{name}-{number:03}.md").write_text("\n\n".join(parts) or "nothing")
    with (folder / "xquad.jsonl").open("w", encoding="utf-8") as out:
        for language in LANGUAGES:
            for row in rows(data / "xquad" / f"{language}.dev.jsonl"):
                fields = {"title": row["title"], "text": row["context"]}
                out.write(json.dumps(fields, ensure_ascii=False) + "\n")
