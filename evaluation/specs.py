"""Gate specs of the command line: `GATE[:key=value[,key=value…]]`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from hopgate.nodes.context import Gate

GATES = tuple(gate for gate in get_args(Gate) if gate not in ("off", "reply"))
"""Those of `Context` except `off`, which leaves the decision to the router."""
PROMPTED = ("auto", "ta-are", "confidence")
"""Gates whose prompt has demonstrations and a date."""


class Spec(NamedTuple):
    """A gate to run.

    Attributes:
        name: The spec as typed.
        settings: The fields of `Context` that it sets.
    """

    name: str
    settings: dict[str, Any]

    @property
    def slug(self) -> str:
        """The name of its files: unique for each spec."""
        safe = self.name.replace(":", "_", 1)
        plain = re.sub(r"[^a-z0-9.=,_-]", "-", safe)[:80]
        if plain == safe and "_" not in self.name:
            return plain
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @property
    def dated(self) -> bool:
        """Whether its prompt names today's date."""
        return self.settings["gate"] in PROMPTED and self.settings.get("gate_date", True)


def parse_specs(texts: Sequence[str]) -> list[Spec]:
    """Read several specs.

    Raises:
        ValueError: One is invalid, or two mean the same.
    """
    specs: list[Spec] = []
    for spec in map(parse_spec, texts):
        if same := next((each for each in specs if each.settings == spec.settings), None):
            also = "" if same.name == spec.name else f", as {same.name!r}"
            raise ValueError(f"--gate {spec.name!r} is given twice{also}; leave one out")
        specs.append(spec)
    return specs


def parse_spec(text: str) -> Spec:
    """Read one spec, such as `ta-are:date=no,demos=0`.

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
            raise ValueError(f"--gate {text!r}: {pair!r} is not one of {', '.join(_forms())}")
        known = KEYS[key]
        if gate not in known.gates:
            raise ValueError(f"--gate {text!r}: {gate} has no {key}; leave it out")
        if known.field in settings:
            raise ValueError(f"--gate {text!r}: {key} is given twice; leave one out")
        try:
            settings[known.field] = known.read(value)
        except ValueError as error:
            raise ValueError(
                f"--gate {text!r}: {key} is {value!r}; give {key}={known.form}"
            ) from error
    return Spec(text, settings)


class Key(NamedTuple):
    """A key of a spec: its form and parser of its values, field of `Context`, gates that use it."""

    form: str
    read: Callable[[str], Any]
    field: str
    gates: tuple[str, ...]


def _forms() -> list[str]:
    return [f"{name}={key.form}" for name, key in KEYS.items()]


def _one_of(*values: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value not in values:
            raise ValueError
        return value

    return read


def _count(value: str) -> int:
    if not re.fullmatch(r"\d{1,2}", value) or int(value) > 12 or int(value) % 2:
        raise ValueError
    return int(value)


def _file(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError
    return str(Path(value).absolute())


def _share(value: str) -> float:
    if not 0 <= (share := float(value)) <= 1:
        raise ValueError
    return share


KEYS = {
    "date": Key("yes|no", lambda v: _one_of("yes", "no")(v) == "yes", "gate_date", PROMPTED),
    "demos": Key("N, an even number from 0 to 12", _count, "gate_demos", PROMPTED),
    "pool": Key("FILE, an existing one", _file, "demos", PROMPTED),
    "threshold": Key("X from 0 to 1", _share, "gate_threshold", ("auto", "confidence", "draft")),
    "layout": Key("inline|turns", _one_of("inline", "turns"), "layout", GATES),
    "invalid": Key(
        "retrieve|direct", _one_of("retrieve", "direct"), "gate_invalid", (*PROMPTED, "vanilla")
    ),
}
