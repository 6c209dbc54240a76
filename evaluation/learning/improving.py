"""`hopgate improve`: label questions, train a candidate on them, and compare it with the router.

    labels.jsonl     each strategy's answers, as `hopgate label` writes them
    train.jsonl      the rows that the candidate is trained on
    router/          the candidate
    verdict.json     the figures of both routers, and whether the candidate may be promoted
    report.md        the same for people, with the questions whose route changed
    replay.png       accuracy against steps of both

Nothing is promoted here: see `hopgate.evaluation.learning.promoting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.classifiers.checkpoint import MANIFEST, profiles_in, router_folder
from hopgate.classifiers.profiles import chosen_profile, own_profile
from hopgate.classifiers.router import Router, load_router
from hopgate.classifiers.training.adding import add_profiles, extendable
from hopgate.classifiers.training.data import check_profile
from hopgate.common.files import json_bytes, json_line, sha256
from hopgate.common.strategies import FLARE_NAMES
from hopgate.evaluation.learning import labelling
from hopgate.evaluation.learning.outcomes import (
    SHARE_HELD_OUT,
    ReplayRow,
    read_outcomes,
    recorded_of,
    split,
)
from hopgate.evaluation.learning.promoting import CANDIDATE, FORMAT, VERDICT
from hopgate.evaluation.learning.verdicts import ALPHAS, MIN_QUESTIONS, compare
from hopgate.evaluation.measuring.replay import Routed, route_all
from hopgate.evaluation.measuring.runner import Job, Progress
from hopgate.evaluation.measuring.sweep import evenly, tabulated
from hopgate.evaluation.reports.drawing import require_matplotlib, to_png
from hopgate.evaluation.reports.output import check_folder, write_files
from hopgate.evaluation.reports.pages import render
from hopgate.evaluation.reports.pictures import draw_sweep

LABELLED, TRAIN, PAGE, PICTURE = "labels.jsonl", "train.jsonl", "report.md", "replay.png"
HELD_OUT, TRUSTED = "held out", "trusted"
POINTS = 41
"""Values of α that the area is over."""
MOST_SHOWN = 200
"""Questions with a changed route that the page lists."""


class Inputs(NamedTuple):
    """The data that a candidate is trained on and compared on.

    Attributes:
        questions: JSONL that `hopgate label` reads.
        collection: The index to search.
        judging: Which answers are correct.
        labels: More label rows to train on.
        trusted: Label rows of other questions to compare on, such as judged by people.
    """

    questions: Path
    collection: Path
    judging: labelling.Judging
    labels: Sequence[Path] = ()
    trusted: Path | None = None


class Replayed(NamedTuple):
    """Both routers, replayed on one set of questions.

    Attributes:
        comparison: The figures of both; see `verdicts.compare`.
        changed: The questions whose route changed at the α of requests, with the old choice and
            the new one: 0, 1, 2 for A, B, C.
        sweep: See `measuring.sweep.tabulated`; None if multi-step was never correct.
    """

    comparison: dict[str, Any]
    changed: Sequence[tuple[ReplayRow, int, int]]
    sweep: dict[str, Any] | None


class Rule(NamedTuple):
    """The router that the candidate replaces, and the bounds it must reach.

    Attributes:
        router: Folder of the router in use, or `builtin`.
        profile: The profile to train; `auto`: the model's own.
        alpha: The α of requests.
        floor: Smallest share of the held-out questions to answer; None: it must not fall.
    """

    router: str
    profile: str
    alpha: float
    floor: float | None = None


def improve(inputs: Inputs, rule: Rule, out: Path, job: Job) -> dict[str, Any]:
    """Make a candidate and say whether it may be promoted.

    Args:
        inputs: Questions and labels.
        rule: The router in use and the conditions.
        out: Folder to write to. If the command was interrupted, its answers are used again.
        job: The command's options, with the settings that answers depend on.

    Returns:
        The content of `verdict.json`; `reasons` is empty if the candidate may be promoted.

    Raises:
        ValueError: An input is wrong.
        RuntimeError: The model failed, a file of the router was altered, or an extra is missing.
    """
    profile, before = _checked(inputs, rule, out, job)
    more = [row for path in inputs.labels for row in read_outcomes(path)]
    trusted = read_outcomes(inputs.trusted) if inputs.trusted else []
    labelling.label(inputs.questions, inputs.collection, out / LABELLED, inputs.judging, job)
    labelled = read_outcomes(out / LABELLED)
    train, held_out = split(labelled, more, trusted)
    pair = _trained(rule, profile, before, train, out)
    replayed = {
        name: _replayed(name, pair, rows, rule, job.progress)
        for name, rows in ((HELD_OUT, held_out), (TRUSTED, trusted))
        if rows
    }
    reasons = _reasons(len(held_out), replayed)
    verdict = {
        "format": FORMAT,
        "promote": not reasons,
        "reasons": reasons,
        "router": {"name": rule.router, "profile": before, "sha256": _manifest(rule.router)},
        "candidate": {"profile": profile, "sha256": _manifest(out / CANDIDATE)},
        "alpha": rule.alpha,
        "floor": rule.floor,
        "questions": {"labelled": len(labelled), "trained on": len(train)}
        | {HELD_OUT: len(held_out), TRUSTED: len(trusted)},
        "compared": {name: each.comparison for name, each in replayed.items()},
        "model": job.model,
        "judge": inputs.judging.judge,
        "command": job.command,
        "date": date.today().isoformat(),
        "version": version("hopgate"),
    }
    sweep = replayed[HELD_OUT].sweep if HELD_OUT in replayed else None
    page = render(
        "improving.md.jinja",
        **verdict,
        changed={name: each.changed for name, each in replayed.items()},
        most=MOST_SHOWN,
        names=FLARE_NAMES,
        picture=PICTURE if sweep else None,
    )
    pictures = {PICTURE: to_png(draw_sweep(sweep))} if sweep else {}
    write_files(out, pictures | {PAGE: page.encode(), VERDICT: json_bytes(verdict)})
    return verdict


def _checked(inputs: Inputs, rule: Rule, out: Path, job: Job) -> tuple[str, str]:
    """Check what training needs, and that no input would be replaced, before any model is asked.

    Returns:
        The profile to train, and the one that requests use now.
    """
    require_matplotlib()
    check_folder(out)
    written = [(out / name).resolve() for name in (LABELLED, TRAIN)]
    for path in (inputs.questions, *inputs.labels, inputs.trusted):
        if path and path.resolve() in written:
            raise ValueError(f"{path} is a file that this command writes; use another --out")
    if router_folder(rule.router).resolve() == (out / CANDIDATE).resolve():
        raise ValueError(f"--router {rule.router} is where --out puts the candidate; use another")
    profiles = profiles_in(rule.router)
    name = own_profile(job.model, profiles) if rule.profile == "auto" else rule.profile
    profile = name or profiles[0]
    check_profile(profile)
    extendable(rule.router, [profile])
    before = profile if profile in profiles else chosen_profile(rule.router, "auto", job.model)
    return profile, before or profiles[0]


def _trained(
    rule: Rule, profile: str, before: str, train: Sequence[ReplayRow], out: Path
) -> tuple[Router, Router]:
    """Train the candidate; return the router in use and the candidate."""
    write_files(out, {TRAIN: b"".join(json_line(row.as_label()) for row in train)})
    add_profiles(rule.router, {profile: [out / TRAIN]}, out / CANDIDATE, overwrite=True)
    return load_router(rule.router, before), load_router(out / CANDIDATE, profile)


def _manifest(router: Path | str) -> str:
    """Return the SHA-256 of a router's manifest, which covers all its files."""
    return sha256(router_folder(router) / MANIFEST)


def _replayed(
    name: str,
    pair: tuple[Router, Router],
    rows: Sequence[ReplayRow],
    rule: Rule,
    progress: Progress,
) -> Replayed:
    recorded = recorded_of(rows)
    alphas = sorted({*evenly(POINTS), *ALPHAS, rule.alpha})
    advance = partial(progress, f"replaying, {name}")

    def served(router: Router) -> Routed:
        """Route as requests are routed: B instead of A where the router is in doubt."""
        found = route_all(router, recorded.questions, alphas, advance)
        doubted = [each is not None for each in router.doubts(recorded.questions)]
        found.choices[:, doubted] = found.choices[:, doubted].clip(min=1)
        return found

    routed = [served(each) for each in pair]
    before, after = (each.choices for each in routed)
    floor = rule.floor if name == HELD_OUT else None
    named = dict(zip(("in use", "candidate"), zip(pair, routed, strict=True), strict=True))
    at = alphas.index(rule.alpha)
    both = zip(rows, before[at].tolist(), after[at].tolist(), strict=True)
    return Replayed(
        comparison=compare(recorded, before, after, alphas, rule.alpha, floor),
        changed=[(row, old, new) for row, old, new in both if old != new],
        sweep=tabulated(named, recorded, alphas) if recorded.correct[:, -1].any() else None,
    )


def _reasons(held_out: int, replayed: Mapping[str, Replayed]) -> list[str]:
    """Return why the candidate may not be promoted."""
    if held_out < MIN_QUESTIONS:
        enough = round(MIN_QUESTIONS / SHARE_HELD_OUT, -1)
        return [
            f"{held_out} held-out questions are too few to compare on; {MIN_QUESTIONS} are needed, "
            f"so label about {enough:.0f} questions"
        ]
    return [
        f"{figure['worse']} ({each.comparison['questions']} questions, {name})"
        for name, each in replayed.items()
        for figure in each.comparison["figures"]
        if figure["worse"]
    ]
