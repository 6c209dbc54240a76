"""Do other signals decide better than the ones that ship? Measured with the embedded model.

    python benchmarks/signals.py --data FOLDER --index FOLDER --out FOLDER

`--data` holds `train.jsonl` and `fresh.jsonl` of pipeline_data.py, and what `hopgate label --judge
match` made of each: `labels-train.jsonl`, `labels-fresh.jsonl` and their journals of answers.
Everything is chosen and fitted on the first; the second is only measured. What the model and the
index say about each question is asked once and kept in `--out`, so that a second run resumes.

Prints Markdown tables. Intervals: 95%, bootstrap over the fresh questions; differences are paired.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from signals_gather import gathered
from signals_scores import (
    Floats,
    Outcomes,
    Row,
    along,
    area,
    auroc,
    by_name,
    curve,
    first_search,
    fitted,
    margins,
    outcomes,
    p_yes,
    resamples,
    router_chances,
    share_area,
    shown,
    within,
)

from hopgate.classifiers.utility import STEPS

SHIPS = "largest entropy (ships)"
NONE, SINGLE, MULTI = range(3)


class Part(NamedTuple):
    """The questions of one file, what was recorded, and what was gathered of each."""

    rows: list[Row]
    outcomes: Outcomes
    doubt: Floats
    seen: list[Row]


def part(name: str, data: Path, index: Path, out: Path) -> Part:
    seen = gathered(data / f"{name}.jsonl", index, out / f"{name}.signals.jsonl")
    rows = lines(data / f"labels-{name}.jsonl")
    if unlabelled := seen.keys() - {row["id"] for row in rows}:
        raise SystemExit(f"{len(unlabelled)} questions of {name}.jsonl have no label; label them")
    answers = {row["id"]: row for row in lines(data / f"labels-{name}.answers.jsonl")}
    single = [answers[f"single:{row['id']}"] for row in rows]
    doubt = [[float(each["doubt"] is not None), float(each["cited"])] for each in single]
    return Part(rows, outcomes(rows), np.array(doubt), [seen[row["id"]] for row in rows])


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "index", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    folders = (options.data, options.index, options.out)
    train, fresh = part("train", *folders), part("fresh", *folders)
    weights = resamples(len(fresh.rows))
    margin = draft_table(train, fresh, weights)
    chances = router_chances(train.rows, fresh.rows)
    groups = [signals(each, margin) for each in (train, fresh)]
    router_table(train, fresh, chances, groups, weights)
    escalation_table(train, fresh, chances, groups, weights)
    costs(fresh)


# The draft


def draft_table(train: Part, fresh: Part, weights: Floats) -> str:
    """Print how well each signal of the draft ranks the questions; return the best margin."""
    print("| signal | train: AUROC | fresh: AUROC | less the entropy's | area | less its |")
    print("|---|---|---|---|---|---|")
    known, scores = [signal_scores(each) for each in (train, fresh)]
    once = resamples(len(train.rows))[:1]
    ranks = {
        name: float(auroc(each, 1 - train.outcomes.right[:, NONE], once)[0])
        for name, each in known.items()
    }
    right = fresh.outcomes.right
    found = {
        name: (
            auroc(each, 1 - right[:, NONE], weights),
            share_area(each, right[:, NONE], right[:, SINGLE], weights),
        )
        for name, each in scores.items()
    }
    for name, (rank, under) in found.items():
        print(
            f"| {name} | {ranks[name]:.3f} | {shown(rank)} | {shown(rank - found[SHIPS][0])} | "
            f"{shown(under)} | {shown(under - found[SHIPS][1])} |"
        )
    best = max((name for name in ranks if "p₁ −" in name or "p₁ - " in name), key=ranks.__getitem__)
    print(f"\nThe best margin of the training questions: {best}.\n")
    return best


def signal_scores(questions: Part) -> dict[str, Floats]:
    scores = by_name([margins(row) for row in questions.seen])
    return scores | {"P(Yes)": np.array([p_yes(row) for row in questions.seen])}


# The router


def signals(questions: Part, margin: str) -> dict[str, Floats]:
    """Return the columns of each signal: [questions, columns]."""
    draft = signal_scores(questions)
    search = by_name([first_search(row) for row in questions.seen])
    own = {
        "draft: entropy": draft[SHIPS][:, None],
        "draft: margin": draft[margin][:, None],
        "gate: P(Yes)": draft["P(Yes)"][:, None],
    }
    return {
        **own,
        **{f"search: {name}": columns for name, columns in search.items()},
        "search: all": np.concatenate([*search.values()], 1),
        "all signals": np.concatenate([*own.values(), *search.values()], 1),
    }


def router_table(
    train: Part,
    fresh: Part,
    chances: tuple[Floats, Floats],
    groups: list[dict[str, Floats]],
    weights: Floats,
) -> None:
    """Print accuracy against steps of the router, alone and with each signal."""
    steps = train.outcomes.steps.mean(0)
    known, found = {"as it ships": chances[0]}, {"as it ships": chances[1]}
    for name in ("alone", *groups[0]):
        inputs = [
            np.concatenate([chance, *([group[name]] if name in group else [])], 1)
            for chance, group in zip(chances, groups, strict=True)
        ]
        known[name], found[name] = fitted(inputs[0], train.outcomes.right, inputs[1])
    measured = {}
    for name in found:
        spent = STEPS if name == "as it ships" else steps
        measured[name] = measures(found[name], fresh, spent, weights)
        once = resamples(len(train.rows))[:1]
        before = measures(known[name], train, spent, once)["area"][0]
        measured[name]["train"] = before
    print("| router | train: area | fresh: area | less alone | at single's steps | less alone |")
    print("|---|---|---|---|---|---|")
    for name, each in measured.items():
        cells = [
            text
            for key in ("area", "at single")
            for text in (shown(each[key]), shown(each[key] - measured["alone"][key]))
        ]
        print(f"| {name} | {each['train']:.3f} | {' | '.join(cells)} |")
    always = [shown(weights @ fresh.outcomes.right[:, at]) for at in (NONE, SINGLE, MULTI)]
    print(f"\nAlways none {always[0]}, single {always[1]}, multi {always[2]}.\n")


def measures(
    chances: Floats, questions: Part, steps: Floats | tuple[float, ...], weights: Floats
) -> dict[str, Floats]:
    choices = curve(chances, steps)
    right = along(choices, questions.outcomes.right, weights)
    spent = along(choices, questions.outcomes.steps, weights)
    most = questions.outcomes.steps[:, MULTI].mean()
    return {"area": area(right, spent, most), "at single": within(right, spent, 1.0)}


# Escalation


def escalation_table(
    train: Part,
    fresh: Part,
    chances: tuple[Floats, Floats],
    groups: list[dict[str, Floats]],
    weights: Floats,
) -> None:
    """Print how well the doubt about a single answer, and the signals, find the wrong ones."""
    parts = (train, fresh)
    doubt = "doubt (ships)"
    inputs: dict[str, list[Floats]] = {"doubt, citations and router": []}
    base = [np.concatenate([p.doubt, c], 1) for p, c in zip(parts, chances, strict=True)]
    inputs = {"doubt, citations, router": base}
    for name in groups[0]:
        inputs[f"and {name}"] = [
            np.concatenate([b, g[name]], 1) for b, g in zip(base, groups, strict=True)
        ]
    wrong = 1 - train.outcomes.right[:, [SINGLE]]
    scores: Mapping[str, Floats] = {
        doubt: fresh.doubt[:, 0],
        **{name: fitted(x[0], wrong, x[1])[1][:, 0] for name, x in inputs.items()},
    }
    right = fresh.outcomes.right
    found = {
        name: (
            auroc(each, 1 - right[:, SINGLE], weights),
            share_area(each, right[:, SINGLE], right[:, MULTI], weights),
        )
        for name, each in scores.items()
    }
    print("| escalating by | AUROC: single wrong | less doubt's | area | less doubt's |")
    print("|---|---|---|---|---|")
    for name, (rank, under) in found.items():
        print(
            f"| {name} | {shown(rank)} | {shown(rank - found[doubt][0])} | {shown(under)} | "
            f"{shown(under - found[doubt][1])} |"
        )
    print()


def costs(questions: Part) -> None:
    """Print what each signal costs by itself."""
    print("| signal | model calls | tokens | ms, median |")
    print("|---|---|---|---|")
    for kind in ("draft", "confidence"):
        spent = [row[kind]["cost"] for row in questions.seen]
        tokens = np.mean([each["prompt_tokens"] + each["completion_tokens"] for each in spent])
        print(f"| {kind} | 1 | {tokens:.0f} | {np.median([e['ms'] for e in spent]):.0f} |")
    print(f"| search | 0 | 0 | {np.median([row['search']['ms'] for row in questions.seen]):.0f} |")


if __name__ == "__main__":
    main()
