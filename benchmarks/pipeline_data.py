"""Passages and questions for the whole pipeline: label, train-router, eval qa.

Writes four files into --out: `passages.jsonl`, every passage of the three sets in --data;
`train.jsonl`, `valid.jsonl` and `fresh.jsonl`, samples of their questions and of
`questions/common.jsonl`. They share no question and no XQuAD paragraph. A hash of the id selects
the questions, so the same data gives the same files.

    python benchmarks/pipeline_data.py --data ../shared/data --out build/pipeline
"""

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SIZES = {
    "train": {"multihop": 34, "retrievalqa": 60, "xquad": 60, "common": 40},
    "valid": {"multihop": 20, "retrievalqa": 25, "xquad": 25, "common": 10},
    "fresh": {"multihop": 0, "retrievalqa": 65, "xquad": 75, "common": 70},
}
"""Number of questions of each set in each part; `train` and `valid` leave no multi-hop question."""
COMMON = Path(__file__).parent / "questions" / "common.jsonl"

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "passages.jsonl", passages(options.data))
    parts: dict[str, list[Row]] = {part: [] for part in SIZES}
    for name, rows in questions(options.data).items():
        ordered = sorted(rows, key=lambda row: hashlib.sha256(row["id"].encode()).digest())
        for part, sizes in SIZES.items():
            parts[part] += ordered[: sizes[name]]
            used = {row["group"] for rows in parts.values() for row in rows}
            ordered = [row for row in ordered if row["group"] not in used]
            if part == "train":
                ordered.reverse()  # so that `valid` is still the sample of earlier figures
    for name, rows in parts.items():
        fields = ("id", "dataset", "question", "answers")
        write(options.out / f"{name}.jsonl", ({key: row[key] for key in fields} for row in rows))


def passages(data: Path) -> Iterator[Row]:
    """Yield title and text of each passage.

    Passages of RetrievalQA may be plain strings, or have only a title; the latter are skipped.
    """
    for row in read(data / "xquad" / "en.dev.jsonl"):
        yield {"title": row["title"].replace("_", " "), "text": row["context"]}
    for name in ("multihop", "retrievalqa"):
        for row in read(data / name / "dev.jsonl"):
            for each in row["context"]:
                passage = {"title": "", "text": each} if isinstance(each, str) else each
                if text := passage.get("text"):
                    yield {"title": passage.get("title") or "", "text": text}


def questions(data: Path) -> dict[str, list[Row]]:
    """Return the questions of each set; rows of one `group` stay in one part."""
    return {
        "multihop": [
            question(row["id"], row["dataset"], row["question"], [row["answer"]])
            for row in read(data / "multihop" / "dev.jsonl")
        ],
        "retrievalqa": [
            question(row["question_id"], "retrievalqa", row["question"], row["ground_truth"])
            for row in read(data / "retrievalqa" / "dev.jsonl")
        ],
        "xquad": [
            question(each["id"], "xquad", each["question"], each["answers"]) | {"group": name}
            for row in read(data / "xquad" / "en.dev.jsonl")
            for name in [hashlib.sha256(row["context"].encode()).hexdigest()]
            for each in row["qas"]
        ],
        "common": [
            question(row["question_id"], "common", row["question"], row["ground_truth"])
            for row in read(COMMON)
        ],
    }


def question(key: str, dataset: str, text: str, answers: Any) -> Row:
    return {"id": key, "dataset": dataset, "question": text, "answers": answers, "group": key}


def read(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write(path: Path, rows: Iterable[Row]) -> None:
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(lines)}")


if __name__ == "__main__":
    main()
