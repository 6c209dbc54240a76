"""How often the wording of a question changes the router's decision, at each α and for each LLM.

    python benchmarks/router_paraphrases.py

Reads the groups in `benchmarks/questions/paraphrases.jsonl` and prints a Markdown table. A group
flips if two of its forms get different labels. Intervals are bootstrapped over the groups.
"""

import numpy as np
from gate_paraphrases import FILE, Group, read_groups
from scipy.stats import bootstrap

from hopgate.classifiers.decision import choose
from hopgate.classifiers.router import Router, load_router
from hopgate.classifiers.training.utility import STEPS
from hopgate.common.strategies import LABELS

ALPHAS = [step / 10 for step in range(11)]


def labels(router: Router, groups: list[Group]) -> list[list[list[int]]]:
    """The label of each form, as its position in ABC: [α][group][form]."""
    forms = [form for group in groups for form in group.questions]
    doubts = router.doubts(forms)
    found = []
    for alpha, rows in zip(ALPHAS, router.route_alphas(forms, ALPHAS), strict=True):
        chosen = (choose(row, alpha, why)[0] for row, why in zip(rows, doubts, strict=True))
        each = iter([LABELS.index(label) for label in chosen])
        found.append([[next(each) for _ in group.questions] for group in groups])
    return found


def flipped(of_alpha: list[list[int]]) -> str:
    flips = np.array([float(len(set(group)) > 1) for group in of_alpha])
    if flips.min() == flips.max():
        return f"{flips.mean():.0%}"
    near = bootstrap((flips,), np.mean, n_resamples=2000, rng=0).confidence_interval
    return f"{flips.mean():.0%} ({near.low:.0%} to {near.high:.0%})"


def steps(of_alpha: list[list[int]]) -> str:
    """The mean steps of the cheapest and of the dearest form of each group."""
    costs = [[STEPS[label] for label in group] for group in of_alpha]
    low, high = (np.mean([pick(group) for group in costs]) for pick in (min, max))
    return f"{low:.2f} to {high:.2f}"


def main() -> None:
    groups = read_groups(FILE)
    profiles = load_router().profiles
    found = {name: labels(load_router(profile=name), groups) for name in profiles}
    print("| α |", " | ".join(profiles), "| steps of flan-t5-xl |")
    print("|---" * (len(profiles) + 2) + "|")
    for at, alpha in enumerate(ALPHAS):
        flips = " | ".join(flipped(found[name][at]) for name in profiles)
        print(f"| {alpha:g} | {flips} | {steps(found['flan-t5-xl'][at])} |")


if __name__ == "__main__":
    main()
