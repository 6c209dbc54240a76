"""What an evaluation runs: gates, `GATE[:key=value[,key=value…]]`, and strategies by name and α."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from hopgate.common.strategies import STRATEGIES
from hopgate.nodes.run.context import Gate

GATES = tuple(gate for gate in get_args(Gate) if gate not in ("off", "reply"))
"""Those of `Context` except `off`, which leaves the decision to the router."""
PROMPTED = ("auto", "ta-are", "confidence")
"""Gates whose prompt has demonstrations and a date."""
ADAPTIVE = "adaptive"
ALPHAS = "0,0.7,1"
"""Default α values of the adaptive strategy."""
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


# Gates


def parse_specs(texts: Sequence[str]) -> list[Variant]:
    """Read several gates.

    Raises:
        ValueError: One is invalid, or two mean the same.
    """
    specs: list[Variant] = []
    for spec in map(parse_spec, texts):
        if same := next((each for each in specs if each.settings == spec.settings), None):
            also = "" if same.name == spec.name else f", as {same.name!r}"
            raise ValueError(f"--gate {spec.name!r} is given twice{also}; leave one out")
        specs.append(spec)
    return specs


def parse_spec(text: str) -> Variant:
    """Read one gate, such as `ta-are:date=no,demos=0`.

    Keys are `date=yes|no` and `demos=N` (the prompt's date and number of demonstrations),
    `pool=FILE` (the source of demonstrations), `threshold=X`, `layout=inline|turns` and
    `invalid=retrieve|direct` (what a reply that is neither Yes nor No means; direct: the paper).

    Raises:
        ValueError: The gate, a key or a value is unknown, or the gate does not use the key.
    """
    gate, colon, rest = text.partition(":")
    if gate not in GATES:
        raise ValueError(f"--gate {text!r}: unknown gate {gate!r}; use {', '.join(GATES)}")
    settings: dict[str, Any] = {"gate": gate}
    for pair in rest.split(",") if colon else []:
        key, equals, value = pair.partition("=")
        if not equals or key not in KEYS:
            forms = ", ".join(f"{name}={key.form}" for name, key in KEYS.items())
            raise ValueError(f"--gate {text!r}: {pair!r} is not one of {forms}")
        known = KEYS[key]
        if gate not in known.gates:
            raise ValueError(f"--gate {text!r}: {gate} has no {key}; leave it out")
        if known.field in settings:
            raise ValueError(f"--gate {text!r}: {key} is given twice; leave one out")
        try:
            settings[known.field] = known.read(value)
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"--gate {text!r}: {key} is {value!r}; give {key}={known.form}"
            ) from error
    return Variant(text, settings)


class Key(NamedTuple):
    """A key of a gate: its form and parser of its values, field of `Context`, gates that use it."""

    form: str
    read: Callable[[str], Any]
    field: str
    gates: tuple[str, ...]


def _file(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError
    return str(Path(value).absolute())


def _share(value: str) -> float:
    if not 0 <= (share := float(value)) <= 1:
        raise ValueError
    return share


def _same(*values: str) -> Callable[[str], str]:
    return {value: value for value in values}.__getitem__


KEYS = {
    "date": Key("yes|no", {"yes": True, "no": False}.__getitem__, "gate_date", PROMPTED),
    "demos": Key(
        "N, an even number from 0 to 12",
        {str(count): count for count in range(0, 13, 2)}.__getitem__,
        "gate_demos",
        PROMPTED,
    ),
    "pool": Key("FILE, an existing one", _file, "demos", PROMPTED),
    "threshold": Key("X from 0 to 1", _share, "gate_threshold", ("auto", "confidence", "draft")),
    "layout": Key("inline|turns", _same("inline", "turns"), "layout", GATES),
    "invalid": Key(
        "retrieve|direct", _same("retrieve", "direct"), "gate_invalid", (*PROMPTED, "vanilla")
    ),
}


# Strategies


def systems(
    strategies: str, alphas: str | None, escalate: int, settings: Mapping[str, Any]
) -> list[Variant]:
    """Return what to run: each static strategy once, the adaptive one for each α.

    With `escalate`, the adaptive one runs twice for each α: without and with it.

    Args:
        strategies: Names of strategies, or `adaptive`, separated by commas.
        alphas: Numbers from 0 to 1, separated by commas; None: `ALPHAS`.
        escalate: Maximum number of retrievals up to which answers in doubt are escalated.
        settings: Fields of `Context` for the adaptive strategy, those of `DECIDING`.

    Raises:
        ValueError: A name or number is invalid or given twice, or `alphas` or `escalate` is given
            without the adaptive strategy.
    """
    names = _split("--strategies", strategies)
    known = (*STRATEGIES, ADAPTIVE)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--strategies: unknown strategy {unknown[0]!r}; use {', '.join(known)}")
    for option, given in (("--alphas", alphas is not None), ("--escalate", escalate)):
        if given and ADAPTIVE not in names:
            raise ValueError(
                f"{option} is for the strategy {ADAPTIVE}; add it, or leave {option} out"
            )
    found = []
    for name in names:
        if name != ADAPTIVE:
            found.append(Variant(name, {"strategy": name}))
            continue
        for alpha in map(_alpha, _split("--alphas", ALPHAS if alphas is None else alphas)):
            plain = Variant(f"{ADAPTIVE}:alpha={alpha:.10g}", {"alpha": alpha, **settings})
            found.append(plain)
            if escalate:
                name = f"{plain.name},escalate={escalate}"
                found.append(Variant(name, {**plain.settings, "escalate": escalate}))
    counts = Counter(each.name for each in found)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"{repeated[0]} is given twice; leave one out")
    return found


def _split(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{option} is {text!r}; separate values with single commas")
    return parts


def _alpha(text: str) -> float:
    try:
        alpha = float(text)
    except ValueError:
        alpha = math.nan
    if not 0 <= alpha <= 1:
        raise ValueError(f"--alphas: {text!r} is not a number from 0 to 1")
    return alpha
