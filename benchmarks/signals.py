"""Do other signals decide better than the shipped ones? Measured with the embedded model.

    python benchmarks/signals.py --data FOLDER --labels TRAIN.jsonl FRESH.jsonl --out FOLDER

`--data` holds `train.jsonl` and `fresh.jsonl` of pipeline_data.py, and `index`; `--labels` are the
output of `hopgate label --judge match` for them, the second with its journal of answers next to it.
Everything is chosen and fitted on the first; the second is only measured. The model and the index
are asked about each question once, and the results kept in `--out`, so a second run resumes.

Prints Markdown tables. Intervals: 95%, bootstrap over the fresh questions; differences are paired.
"""

import argparse
import json
from collections.abc import Sequence
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
    own_tokens,
    p_yes,
    resamples,
    router_chances,
    share_area,
    share_right,
    shown,
    within,
)

from hopgate.classifiers.training.utility import STEPS

SHIPS = "largest entropy (ships)"
SHIPPED, ALONE, DOUBT = "as it ships", "router alone", "doubt (ships)"
NONE, SINGLE, MULTI = range(3)


class Part(NamedTuple):
    """The questions of one file, their outcomes, and the signals gathered for each."""

    rows: list[Row]
    outcomes: Outcomes
    seen: list[Row]


def part(name: str, labels: Path, data: Path, out: Path) -> Part:
    labelled = {row["id"]: row for row in lines(labels)}
    rows = lines(data / f"{name}.jsonl")
    if missing := [row["id"] for row in rows if row["id"] not in labelled]:
        raise SystemExit(
            f"{len(missing)} questions of {name}.jsonl, the first with id {missing[0]!r}, have no "
            f"row in {labels}; run hopgate label until it is complete"
        )
    seen = gathered(data / f"{name}.jsonl", data / "index", out / f"{name}.signals.jsonl")
    both = [labelled[row["id"]] | {"question": row["question"]} for row in rows]
    return Part(both, outcomes(both), [seen[row["id"]] for row in rows])


def doubts(labels: Path, questions: Part) -> Floats:
    """Return 1 for each question whose single answer was in doubt, else 0."""
    answers = {row["id"]: row for row in lines(labels.with_name(f"{labels.stem}.answers.jsonl"))}
    found = [answers[f"single:{row['id']}"]["doubt"] for row in questions.rows]
    return np.array([float(doubt is not None) for doubt in found])


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--labels", type=Path, nargs=2, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    train, fresh = (
        part(name, labels, options.data, options.out)
        for name, labels in zip(("train", "fresh"), options.labels, strict=True)
    )
    weights = resamples(len(fresh.rows))
    chances = router_chances(train.rows, fresh.rows)
    margin = draft_table(train, fresh, chances, weights)
    columns = [signals(each, margin) for each in (train, fresh)]
    inputs = inputs_of(chances, columns)
    router_table(train, fresh, chances, inputs, weights)
    escalation_table(train, fresh, inputs, doubts(options.labels[1], fresh), weights)
    costs(fresh)


# The draft


def draft_table(train: Part, fresh: Part, chances: tuple[Floats, Floats], weights: Floats) -> str:
    """Print how well each signal tells which direct answers are wrong; return the best margin."""
    print("| signal | train: AUROC | fresh: AUROC | less the entropy's | area | less its |")
    print("|---|---|---|---|---|---|")
    known, scores = (
        signal_scores(each) | {"the router, from the question alone": -chance[:, NONE]}
        for each, chance in zip((train, fresh), chances, strict=True)
    )
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
    best = max((name for name in ranks if "p₂" in name), key=ranks.__getitem__)
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


def inputs_of(
    chances: tuple[Floats, Floats], columns: list[dict[str, Floats]]
) -> dict[str, tuple[Floats, Floats]]:
    """Return the router's chances, alone and with each signal, of train and fresh."""
    found = {ALONE: chances}
    for name in columns[0]:
        both = zip(chances, columns, strict=True)
        train, fresh = (np.concatenate([chance, each[name]], 1) for chance, each in both)
        found[name] = train, fresh
    return found


def router_table(
    train: Part,
    fresh: Part,
    chances: tuple[Floats, Floats],
    inputs: dict[str, tuple[Floats, Floats]],
    weights: Floats,
) -> None:
    """Print accuracy against steps of the router, alone and with each signal."""
    steps = train.outcomes.steps.mean(0)
    once = resamples(len(train.rows))[:1]
    known, found = {}, {}
    for name, (before, after) in {
        SHIPPED: chances,
        f"{SHIPPED}, never multi": (without_multi(chances[0]), without_multi(chances[1])),
    }.items():
        known[name] = measures(name, before, train, STEPS, once)
        found[name] = measures(name, after, fresh, STEPS, weights)
    for name, (before, after) in inputs.items():
        held_out, fitted_to = fitted(before, train.outcomes.right, after)
        known[name] = measures(name, held_out, train, steps, once)
        found[name] = measures(name, fitted_to, fresh, steps, weights)
    keys = ("area", "at single's steps", "at single's tokens")
    print("| router | train: area | " + " | ".join(f"{key} | less alone" for key in keys) + " |")
    print("|---|---|" + "---|---|" * len(keys))
    for name, each in found.items():
        cells = [
            text
            for key in keys
            for text in (shown(each[key]), shown(each[key] - found[ALONE][key]))
        ]
        print(f"| {name} | {known[name]['area'][0]:.3f} | {' | '.join(cells)} |")
    best = max(inputs.keys() - {ALONE}, key=lambda name: known[name]["area"][0])
    print(f"\nThe best signal of the training questions: {best}.")
    for key in keys:
        own, all_in_all = (found[best][key] - found[name][key] for name in (ALONE, SHIPPED))
        print(
            f"{key}: {shown(own)} less alone, of which 80% power finds {2.8 * own[1:].std():.3f}; "
            f"{shown(all_in_all)} less as it ships."
        )
    always = [shown(weights @ fresh.outcomes.right[:, at]) for at in (NONE, SINGLE, MULTI)]
    print(f"\nAlways none {always[0]}, single {always[1]}, multi {always[2]}.")
    ranks = [
        shown(auroc(chances[1][:, at], fresh.outcomes.right[:, at], weights)) for at in range(3)
    ]
    print(f"AUROC of the shipped chances: none {ranks[0]}, single {ranks[1]}, multi {ranks[2]}.\n")


def without_multi(chances: Floats) -> Floats:
    return np.where(np.arange(3) == MULTI, -1.0, chances)


def measures(
    name: str, chances: Floats, questions: Part, steps: Sequence[float] | Floats, weights: Floats
) -> dict[str, Floats]:
    """Return accuracy along the curve of a router with a signal, in each resample."""
    outcome = questions.outcomes
    choices = curve(chances, steps)
    right = along(choices, outcome.right, weights)
    spent = along(choices, outcome.steps, weights)
    own = np.array([own_tokens(row, name) for row in questions.seen])
    tokens = along(choices, outcome.tokens + own, weights)
    return {
        "area": area(right, spent, outcome.steps[:, MULTI].mean()),
        "at single's steps": within(right, spent, 1.0),
        "at single's tokens": within(right, tokens, outcome.tokens[:, SINGLE].mean()),
    }


# Escalation


def escalation_table(
    train: Part,
    fresh: Part,
    inputs: dict[str, tuple[Floats, Floats]],
    doubt: Floats,
    weights: Floats,
) -> None:
    """Print how well the doubt about a single answer, and the signals, find the wrong ones.

    The recorded doubt of the training questions is not used: the doubt is combined with the chance
    of a wrong answer, fitted to the signals alone.
    """
    wrong = 1 - train.outcomes.right[:, [SINGLE]]
    once = resamples(len(train.rows))[:1]
    ranks, scores = {}, {DOUBT: doubt}
    for name, (before, after) in inputs.items():
        held_out, chance = fitted(before, wrong, after)
        ranks[name] = float(auroc(held_out[:, 0], wrong[:, 0], once)[0])
        scores[name] = chance[:, 0]
    best = max(ranks, key=ranks.__getitem__)
    scores[f"doubt, then {best}"] = doubt + scores[best]
    right, share = fresh.outcomes.right, float(doubt.mean())
    found = {
        name: (
            auroc(each, 1 - right[:, SINGLE], weights),
            share_right(each, right[:, SINGLE], right[:, MULTI], share, weights),
        )
        for name, each in scores.items()
    }
    always = weights @ right[:, SINGLE]
    print(f"{share:.0%} of the single answers are in doubt; each row escalates as many.\n")
    print(
        "| escalating by | train: AUROC | fresh: AUROC | less doubt's | right | less doubt's |",
        end="",
    )
    print(" less always single |\n|---|---|---|---|---|---|---|")
    for name, (rank, escalated) in found.items():
        cells = [
            rank,
            rank - found[DOUBT][0],
            escalated,
            escalated - found[DOUBT][1],
            escalated - always,
        ]
        before = f"{ranks[name]:.3f}" if name in ranks else ""
        print(f"| {name} | {before} | {' | '.join(map(shown, cells))} |")
    print()


def costs(questions: Part) -> None:
    """Print what each signal costs by itself."""
    for kind in ("draft", "confidence"):
        spent = [row[kind]["cost"] for row in questions.seen]
        tokens = np.mean([each["prompt_tokens"] + each["completion_tokens"] for each in spent])
        print(f"{kind}: one call of {tokens:.0f} tokens.")
    took = np.median([row["search"]["ms"] for row in questions.seen])
    print(f"search: in three modes, {took:.0f} ms (median).")


if __name__ == "__main__":
    main()
