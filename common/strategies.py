"""The three retrieval strategies and the names that routers and label files give them.

A strategy is `none`, `single` or `multi` everywhere in hopgate. A router's label is A, B or C, as
in Adaptive-RAG. Flare-Aug's label files call the strategies `zero`, `one` and `multiple`.
"""

from typing import Literal

Strategy = Literal["none", "single", "multi"]
Label = Literal["A", "B", "C"]
FlareName = Literal["zero", "one", "multiple"]

STRATEGIES: tuple[Strategy, ...] = ("none", "single", "multi")
"""Cheapest first."""
LABELS: tuple[Label, ...] = ("A", "B", "C")
"""In the order of `STRATEGIES`."""
STRATEGY_OF: dict[Label, Strategy] = dict(zip(LABELS, STRATEGIES, strict=True))
LABEL_OF: dict[Strategy, Label] = dict(zip(STRATEGIES, LABELS, strict=True))

FLARE_NAMES: tuple[FlareName, ...] = ("zero", "one", "multiple")
"""The names of `STRATEGIES` in Flare-Aug's label files, in the same order."""
FLARE_NAME_OF: dict[Strategy, FlareName] = dict(zip(STRATEGIES, FLARE_NAMES, strict=True))
