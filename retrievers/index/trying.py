"""A user's own questions, searched in every mode of an index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.files import read_jsonl
from hopgate.retrievers.base import Hit
from hopgate.retrievers.sources import MODES, open_source

_EXPECTED = 'questions: one a line in a .txt, or a .jsonl of {"question": …, "expected": …}'


class Wanted(NamedTuple):
    """A question, and the passages that it should find: their ids or documents, if any are known.

    A document is named by its source, or by the end of it after a `/`.
    """

    question: str
    expected: tuple[str, ...] = ()

    def rank(self, hits: Sequence[Hit]) -> int | None:
        """Return the rank of the first expected passage; None if it is not among the hits."""
        names = [(hit["id"], f"/{hit.get('source', '')}") for hit in hits]
        matches = [
            any(own == e or source.endswith(f"/{e}") for e in self.expected)
            for own, source in names
        ]
        return matches.index(True) + 1 if any(matches) else None


def read_questions(path: Path) -> list[Wanted]:
    """Read questions from a .jsonl or a text.

    Raises:
        ValueError: The file cannot be read, or has no questions.
    """
    if path.suffix == ".jsonl":
        return read_jsonl(path, _parse, expected=_EXPECTED)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); give {_EXPECTED}") from error
    if not (found := [Wanted(line.strip()) for line in lines if line.strip()]):
        raise ValueError(f"{path} has no questions; give {_EXPECTED}")
    return found


def _parse(fields: dict[str, Any], _: int) -> Wanted:
    question, expected = fields.get("question"), fields.get("expected") or []
    names = expected if isinstance(expected, list) else [expected]
    if not all(isinstance(each, str) for each in (question, *names)):
        raise ValueError("question must be a text, and expected a text or a list of texts")
    return Wanted(str(question), tuple(names))


def compare_modes(index: str, questions: Sequence[Wanted], k: int) -> dict[str, Any]:
    """Search every question in every mode.

    Args:
        index: A folder, a store, or `sample`.
        questions: What to search for.
        k: Passages for each.

    Returns:
        `modes`: for each mode, how often an expected passage came `first`, was `found` among the
        `k`, and its mean reciprocal rank, `mrr`; empty if no question has any. `questions`: each
        with its `ranks` and `hits` by mode.

    Raises:
        ValueError: See `open_source`.
        RuntimeError: See `open_source`.
    """
    texts = [each.question for each in questions]
    found = [open_source(index, mode).search(texts, k) for mode in MODES]
    rows = []
    for wanted, *hits in zip(questions, *found, strict=True):
        ranks = dict(zip(MODES, map(wanted.rank, hits), strict=True))
        rows.append(
            wanted._asdict() | {"ranks": ranks, "hits": dict(zip(MODES, hits, strict=True))}
        )
    known = [row["ranks"] for row in rows if row["expected"]]
    modes = {mode: _summary([ranks[mode] for ranks in known]) for mode in MODES if known}
    return {"k": k, "asked": len(known), "modes": modes, "questions": rows}


def _summary(ranks: Sequence[int | None]) -> dict[str, float]:
    at = [rank for rank in ranks if rank]
    mrr = sum(1 / rank for rank in at) / len(ranks)
    return {"first": at.count(1) / len(ranks), "found": len(at) / len(ranks), "mrr": mrr}
