"""Label rows to train on, and the names of profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hopgate.classifiers.checkpoint import PROFILE
from hopgate.classifiers.labels import LabelRow, read_labels

RESERVED = ("auto", "base", "reliability", "shared")
"""Names that a profile cannot have."""


_ONE_FITS_ALL = {
    "A": "all are answered without a search: set strategy=none",
    "B": "one search is right for all of them: set strategy=single",
    "C": "all need several searches: set strategy=multi",
}


class OneStrategy(RuntimeError):
    """A finding: one strategy is the cheapest right one for all questions."""


def check_profile(name: str) -> None:
    """Check the name of a profile.

    Raises:
        ValueError: It is invalid.
    """
    if not PROFILE.fullmatch(name) or name in RESERVED:
        raise ValueError(
            f"invalid profile name {name!r}; use up to 64 of a-z, 0-9, dot, hyphen and "
            f"underscore, starting with a letter or digit, and none of {', '.join(RESERVED)}"
        )


def read_cost(profile: str, paths: Sequence[Path]) -> list[LabelRow]:
    """Read all label files of one LLM.

    Raises:
        ValueError: The profile's name is invalid, an id is in two files, or no row has a label.
        OneStrategy: All rows that have a label have the same one.
    """
    check_profile(profile)
    rows: dict[str, LabelRow] = {}
    for path in paths:
        for row in read_labels(path):
            if row.id in rows:
                raise ValueError(f"{path}: id {row.id!r} is also in another cost file of {profile}")
            rows[row.id] = row
    labels = {row.label for row in rows.values() if row.label}
    if not labels:
        raise ValueError(f"no strategy answered any of {len(rows)} questions of {profile}")
    if len(labels) == 1:
        raise OneStrategy(
            f"{len(rows)} questions of {profile}: of those that any strategy answered, "
            f"{_ONE_FITS_ALL[labels.pop()]}"
        )
    return list(rows.values())


def check_outcomes(cost: Mapping[str, Sequence[LabelRow]]) -> None:
    """Check that all rows, by profile, say which strategies were right.

    Raises:
        ValueError: A row has no `correct`.
    """
    for profile, rows in cost.items():
        if lacking := next((row.id for row in rows if row.correct is None), None):
            raise ValueError(
                f"row {lacking!r} of profile {profile} has no `correct`; add it, or train with "
                "--objective flare"
            )


def read_reliability(path: Path) -> list[LabelRow]:
    """Read a file of single-hop (B) and multi-hop (C) questions.

    Raises:
        ValueError: A row has another label, or all rows have the same one.
    """
    rows = read_labels(path)
    for row in rows:
        if row.label not in ("B", "C"):
            raise ValueError(
                f"{path}: row {row.id!r} has the label {row.label!r}; reliability labels are B "
                "(single-hop) and C (multi-hop)"
            )
    if len({row.label for row in rows}) < 2:
        raise ValueError(
            "the reliability labels are all of one class, so there is nothing to learn; add others"
        )
    return rows
