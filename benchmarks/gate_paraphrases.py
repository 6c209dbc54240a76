"""How often the wording of a question changes a gate's decision.

    python benchmarks/gate_paraphrases.py OUT --model local:smollm2 --gate ta-are --gate confidence

Asks each gate (`--gate`, as `hopgate eval retrievalqa` takes them) about the groups in
`benchmarks/questions/paraphrases.jsonl`, or in `--groups FILE`, and writes `paraphrases.json` and
`paraphrases.md` into OUT. Only the gate is prompted; the same command resumes.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import bootstrap

from hopgate.common.files import json_bytes, read_jsonl, sha256
from hopgate.evaluation.measuring.gates import RESAMPLES
from hopgate.evaluation.measuring.harness import GateAlone, Question
from hopgate.evaluation.measuring.runner import Job, execute, make_runs
from hopgate.evaluation.measuring.specs import parse_specs
from hopgate.evaluation.reports.output import write_files
from hopgate.nodes.texts.text import check_question

FILE = Path(__file__).parent / "questions" / "paraphrases.jsonl"
MEASURES = {
    "flips": "groups with a flip",
    "pairs": "pairs that differ",
    "retrieve": "Yes",
    "spread": "spread",
}
COUNTS = ("llm_calls", "prompt_tokens", "completion_tokens")


class Group(NamedTuple):
    """One question in several forms."""

    id: str
    questions: tuple[str, ...]


def read_groups(path: Path) -> list[Group]:
    """Read JSONL rows `{"id", "questions": […]}`, each with at least two different forms."""
    expected = 'JSONL with rows such as {"id": "1", "questions": ["…", "…"]}'
    return read_jsonl(path, _group, expected=expected, unique="id")


def _group(row: dict[str, Any], line: int) -> Group:
    questions = tuple(check_question(form) for form in row["questions"])
    if len(questions) < 2 or len(set(questions)) < len(questions):
        raise ValueError("a group needs at least two forms with different texts")
    return Group(str(row["id"]), questions)


def stability(groups: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return how much the decision depends on the wording.

    Each measure has a `value` and a 95% bootstrap `interval` over the groups: `flips` (share of
    groups in which two forms get different decisions), `pairs` (share of pairs of forms that
    differ, mean over groups), `retrieve` (share of Yes, mean over groups) and `spread` (highest
    value minus lowest, mean over groups; None: the gate has no values).
    """
    generator = np.random.default_rng(0)
    measured: dict[str, list[float]] = {name: [] for name in MEASURES}
    for group in groups:
        yes = [each["retrieve"] for each in group]
        measured["flips"].append(float(any(yes) and not all(yes)))
        pairs = [one != other for one, other in itertools.combinations(yes, 2)]
        measured["pairs"].append(float(np.mean(pairs)))
        measured["retrieve"].append(float(np.mean(yes)))
        values = [each["value"] for each in group if each["value"] is not None]
        if len(values) > 1:
            measured["spread"].append(max(values) - min(values))
    return {name: _with_interval(values, generator) for name, values in measured.items()}


def _with_interval(values: Sequence[float], generator: np.random.Generator) -> Any:
    if not values:
        return None
    near = bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=generator
    ).confidence_interval
    return {"value": float(np.mean(values)), "interval": [float(near.low), float(near.high)]}


def measure(file: Path, gates: Sequence[str], model: str, out: Path) -> dict[str, Any]:
    """Ask gates about paraphrases; return the content of `paraphrases.json`."""
    groups = read_groups(file)
    forms = {
        f"{group.id}#{at}": Question(f"{group.id}#{at}", form)
        for group in groups
        for at, form in enumerate(group.questions, 1)
    }
    job = Job({"model": model}, 4, False, "", lambda *_: None)
    identity = sha256(file)
    runs = make_runs(parse_specs(gates), out / "asked", job, {"data": identity})
    measured = []
    answered = execute(runs, forms, GateAlone(), job, out / "asked")
    for run, replies in zip(runs, answered, strict=True):
        left = iter(replies)
        grouped = [[next(left) for _ in group.questions] for group in groups]
        usage = {name: sum(each[name] for each in replies) for name in COUNTS}
        about = {"name": run.name, "settings": run.shown}
        measured.append({**about, "scores": stability(grouped), "usage": usage})
    counts = {"groups": len(groups), "questions": len(forms)}
    return {
        "data": {"name": file.name, "sha256": identity, **counts},
        "model": job.model,
        "date": date.today().isoformat(),
        "version": version("hopgate"),
        "runs": measured,
    }


def page(found: Mapping[str, Any]) -> str:
    """Return `paraphrases.md`."""
    data = found["data"]
    lines = [
        "# How much a gate's decision depends on the wording\n",
        f"Model {found['model']}, {found['date']}; {data['groups']} questions of `{data['name']}` "
        f"in {data['questions']} forms. In brackets: 95% bootstrap interval over the questions.\n",
        f"| gate | {' | '.join(MEASURES.values())} |",
        f"| --- |{' ---: |' * len(MEASURES)}",
    ]
    for run in found["runs"]:
        cells = (_cell(name, run["scores"][name]) for name in MEASURES)
        lines.append(f"| `{run['name']}` | {' | '.join(cells)} |")
    lines.append(
        "\nA flip: two forms of one question get different decisions. Pairs that differ, and Yes: "
        "the share among the forms of a question, mean over questions. Spread: the highest minus "
        "the lowest P(Yes) (for `draft`: uncertainty) among the forms, mean over questions.\n"
    )
    return "\n".join(lines)


def _cell(name: str, score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "–"
    form = ".3f" if name == "spread" else ".0%"
    low, high = (format(each, form) for each in score["interval"])
    return f"{score['value']:{form}} ({low} to {high})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--gate", action="append", required=True)
    parser.add_argument("--model", default="auto")
    parser.add_argument("--groups", type=Path, default=FILE)
    given = parser.parse_args()
    found = measure(given.groups, given.gate, given.model, given.out)
    files = {"paraphrases.md": page(found).encode(), "paraphrases.json": json_bytes(found)}
    write_files(given.out, files)
    print(files["paraphrases.md"].decode())


if __name__ == "__main__":
    main()
