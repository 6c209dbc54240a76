"""How often each mode finds the paragraph that answers, in six languages (XQuAD).

    python benchmarks/languages.py --data FOLDER [--cut] [--encoder NAME] [--languages de,zh]

FOLDER holds `en.dev.jsonl`, `de.dev.jsonl` and so on: the same 160 paragraphs and 750 questions in
each language. Each language gets its own index, whose language is detected and whose default mode
(`auto`) is chosen when it is built. Every question is searched in all paragraphs of its language.
With --cut the paragraphs are read from files and cut into passages as `hopgate index build` cuts
them; a passage counts as its paragraph.

Prints a Markdown table: recall@1/@5 and the time per query, with all queries in one call.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import build_from_passages, build_index
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index.reader import Index, load_index

LANGUAGES = "en,de,es,ru,zh,ar"
MODES: tuple[Mode | None, ...] = ("dense", "bm25", "hybrid", None)


class Question(NamedTuple):
    """A question, and the source of the paragraph that answers it."""

    text: str
    source: str


def read(path: Path) -> tuple[dict[str, str], list[Question]]:
    """Return the paragraphs by source, and the questions."""
    paragraphs, questions = {}, []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        row, source = json.loads(line), f"{number:03}.txt"
        paragraphs[source] = row["context"]
        questions += [Question(each["question"], source) for each in row["qas"]]
    return paragraphs, questions


def build(paragraphs: dict[str, str], folder: Path, encoder: str | None, cut: bool) -> Index:
    """Index the paragraphs, whole or cut into passages."""
    if cut:
        files = folder / "files"
        files.mkdir()
        for source, text in paragraphs.items():
            (files / source).write_text(text, encoding="utf-8")
        build_index([files], folder / "index", encoder)
    else:
        passages = (make_passage("", text, source) for source, text in paragraphs.items())
        build_from_passages(passages, folder / "index", encoder)
    return load_index(folder / "index")


def recalls(index: Index, questions: list[Question], mode: Mode | None) -> tuple[float, float]:
    """Return recall@1 and recall@5."""
    found = index.search([each.text for each in questions], 5, mode)
    sources = [[Path(hit.get("source", "")).name for hit in hits] for hits in found]
    first, five = (
        sum(each.source in own[:depth] for each, own in zip(questions, sources, strict=True))
        for depth in (1, 5)
    )
    return first / len(questions), five / len(questions)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cut", action="store_true", help="cut the paragraphs into passages")
    parser.add_argument("--encoder", help="name or folder; by default the embedded one")
    parser.add_argument("--languages", default=LANGUAGES, help="separated by commas")
    arguments = parser.parse_args()
    print("| language | detected | passages | mode | recall@1 | recall@5 | ms a query |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    reasons = []
    for language in arguments.languages.split(","):
        paragraphs, questions = read(arguments.data / f"{language}.dev.jsonl")
        with tempfile.TemporaryDirectory() as folder:
            index = build(paragraphs, Path(folder), arguments.encoder, arguments.cut)
            known = index.manifest
            reasons.append(f"{language}: {known['mode']}, because {known['mode_reason']}")
            for mode in MODES:
                started = time.perf_counter()
                first, five = recalls(index, questions, mode)
                spent = (time.perf_counter() - started) / len(questions) * 1000
                name = mode or f"auto ({known['mode']})"
                cells = [language, known["language"], str(known["passages"]), name]
                cells += [f"{first:.3f}", f"{five:.3f}", f"{spent:.1f}"]
                print(f"| {' | '.join(cells)} |", flush=True)
    print("", *reasons, sep="\n- ")


if __name__ == "__main__":
    main()
