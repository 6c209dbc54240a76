"""The runs of an evaluation: gates, `GATE[:key=value[,key=value…]]`; strategies by name and α."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from hopgate.common.errors import explain
from hopgate.common.strategies import STRATEGIES
from hopgate.nodes.run.context import Context, Gate

GATES = tuple(gate for gate in get_args(Gate) if gate not in ("off", "reply"))
"""Those of `Context` except `off`, which leaves the decision to the router."""
PROMPTED = ("auto", "ta-are", "confidence")
"""Gates whose prompt has demonstrations and a date."""
KEYS = {
    "date": ("gate_date", PROMPTED),
    "demos": ("gate_demos", PROMPTED),
    "pool": ("demos", PROMPTED),
    "threshold": ("gate_threshold", ("auto", "confidence", "draft")),
    "layout": ("layout", GATES),
    "invalid": ("gate_invalid", (*PROMPTED, "vanilla")),
}
"""The keys of a gate: the field of `Context` that each sets, and the gates that use it."""
ADAPTIVE = "adaptive"
DECIDING = (
    "gate", "gate_threshold", "gate_invalid", "gate_demos", "gate_date", "demos", "router",
    "profile",
)  # fmt: skip
"""Fields of `Context` that only the adaptive strategy uses."""


class Variant(NamedTuple):
    """One way to answer all questions.

    Attributes:
        name: A gate as typed, a strategy, or `adaptive:alpha=0.7,escalate=4`.
        settings: The fields of `Context` that it sets.
    """

    name: str
    settings: dict[str, Any]

    @property
    def slug(self) -> str:
        """The name of its files: unique for each variant."""
        safe = self.name.replace(":", "_", 1)
        plain = re.sub(r"[^a-z0-9.=,_-]", "-", safe)[:80]
        if plain == safe and "_" not in self.name:
            return plain
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @property
    def dated(self) -> bool:
        """Whether a prompt names today's date."""
        return self.settings.get("gate") in PROMPTED and self.settings.get("gate_date", True)


def parse_specs(texts: Sequence[str]) -> list[Variant]:
    """Read several gates.

    Raises:
        ValueError: One is invalid, or two mean the same.
    """
    return _different(map(parse_spec, texts))


def _different(variants: Iterable[Variant]) -> list[Variant]:
    found: list[Variant] = []
    for variant in variants:
        if same := next((each for each in found if each.settings == variant.settings), None):
            raise ValueError(f"{variant.name!r} means the same as {same.name!r}; give one")
        found.append(variant)
    return found


def parse_spec(text: str) -> Variant:
    """Read one gate, such as `ta-are:date=no,demos=0`.

    Keys are `date=yes|no` and `demos=N` (the prompt's date and number of demonstrations),
    `pool=FILE` (the source of demonstrations), `threshold=X`, `layout=inline|turns` and
    `invalid=retrieve|direct` (how to read a reply that is neither Yes nor No; direct: the paper).

    Raises:
        ValueError: The gate or a value is invalid, or the gate does not use a key.
    """
    gate, colon, rest = text.partition(":")
    if gate not in GATES:
        raise ValueError(f"--gate {text!r}: unknown gate {gate!r}; use {', '.join(GATES)}")
    settings = {"gate": gate}
    for pair in rest.split(",") if colon else []:
        key, _, value = pair.partition("=")
        field, gates = KEYS.get(key, ("", ()))
        if gate not in gates:
            known = ", ".join(name for name, (_, used_by) in KEYS.items() if gate in used_by)
            raise ValueError(f"--gate {text!r}: {pair!r} is not one of {known} with =VALUE")
        settings[field] = value
    try:
        context = Context.model_validate(settings)
    except ValidationError as error:
        raise ValueError(f"--gate {text!r}: {explain(error)}") from error
    return Variant(text, {name: getattr(context, name) for name in settings})


def systems(
    strategies: str, alphas: str, escalate: int, settings: Mapping[str, Any]
) -> list[Variant]:
    """Return the runs: each static strategy once, the adaptive one for each α.

    With `escalate`, the adaptive one runs twice for each α: without and with it.

    Args:
        strategies: Names of strategies, or `adaptive`, separated by commas.
        alphas: Numbers from 0 to 1, separated by commas.
        escalate: Maximum number of retrievals up to which answers in doubt are escalated.
        settings: Fields of `Context` for the adaptive strategy, those of `DECIDING`.

    Raises:
        ValueError: A name or number is invalid or given twice.
    """
    found: list[Variant] = []
    for name in map(str.strip, strategies.split(",")):
        if name in STRATEGIES:
            found.append(Variant(name, {"strategy": name}))
        elif name != ADAPTIVE:
            known = ", ".join((*STRATEGIES, ADAPTIVE))
            raise ValueError(f"--strategies: unknown strategy {name!r}; use {known}")
        else:
            for alpha in map(_alpha, alphas.split(",")):
                plain, own = f"{ADAPTIVE}:alpha={alpha:.10g}", {"alpha": alpha, **settings}
                found.append(Variant(plain, own))
                if escalate:
                    more = {**own, "escalate": escalate}
                    found.append(Variant(f"{plain},escalate={escalate}", more))
    return _different(found)


def _alpha(text: str) -> float:
    try:
        return Context.model_validate({"alpha": text}).alpha or 0.0
    except ValidationError as error:
        raise ValueError(f"--alphas: {explain(error)}") from error
