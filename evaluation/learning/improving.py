"""`hopgate improve`: label questions, train a candidate on them, and compare it with the router.

    labels.jsonl     each strategy's answers, as `hopgate label` writes them
    train.jsonl      the rows that the candidate is trained on
    router/          the candidate
    verdict.json     the figures of both routers, and whether the candidate may be promoted
    report.md        the same for people, with the questions whose route changed

Nothing is promoted here: see `hopgate.evaluation.learning.promoting`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    is_held_out,
    read_outcomes,
    recorded_of,
    split,
)
from hopgate.evaluation.learning.promoting import CANDIDATE, FORMAT, VERDICT
from hopgate.evaluation.learning.verdicts import MIN_QUESTIONS, compare
from hopgate.evaluation.measuring.datasets import read_examples
from hopgate.evaluation.measuring.replay import Choices, route_all
from hopgate.evaluation.measuring.runner import Job, Progress
from hopgate.evaluation.reports.output import check_folder, write_files
from hopgate.evaluation.reports.pages import render

LABELLED, TRAIN, PAGE = "labels.jsonl", "train.jsonl", "report.md"
HELD_OUT = "held out"
MOST_SHOWN = 200
"""Questions with a changed route that the page lists."""


class Inputs(NamedTuple):
    """The data that a candidate is trained on and compared on.

    Attributes:
        questions: JSONL that `hopgate label` reads.
        collection: The index to search.
        judge: Which answers are correct.
        labels: More label rows to train on.
    """

    questions: Path
    collection: Path
    judge: labelling.Judge
    labels: Sequence[Path] = ()


class Rule(NamedTuple):
    """The router that the candidate replaces.

    Attributes:
        router: Folder of the router in use, or `builtin`.
        profile: The profile to train; `auto`: the model's own.
        alpha: The α of requests; None: each router's own.
    """

    router: str
    profile: str
    alpha: float | None


def plan(inputs: Inputs, rule: Rule, out: Path, job: Job) -> dict[str, Any]:
    """Make the checks of `improve` that need no model; return `labelling.plan` of its questions."""
    _checked(inputs, rule, out, job)
    return labelling.plan(inputs.questions, inputs.collection, out / LABELLED, inputs.judge, job)


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
    labelling.label(inputs.questions, inputs.collection, out / LABELLED, inputs.judge, job)
    labelled = read_outcomes(out / LABELLED)
    train, held_out = split(labelled, more)
    pair = _trained(rule, profile, before, train, out)
    compared, changed = _replayed(pair, held_out, rule, job.progress) if held_out else ({}, [])
    reasons = _reasons(len(held_out), compared)
    verdict = {
        "format": FORMAT,
        "promote": not reasons,
        "reasons": reasons,
        "router": {"name": rule.router, "profile": before, "sha256": _manifest(rule.router)},
        "candidate": {"profile": profile, "sha256": _manifest(out / CANDIDATE)},
        "alpha": dict(zip(("in use", "candidate"), _alphas(pair, rule), strict=True)),
        "questions": {"labelled": len(labelled), "trained on": len(train), HELD_OUT: len(held_out)},
        "compared": compared,
        "model": job.model,
        "judge": inputs.judge,
        "command": job.command,
        "date": date.today().isoformat(),
        "version": version("hopgate"),
    }
    page = render(
        "improving.md.jinja", **verdict, changed=changed, most=MOST_SHOWN, names=FLARE_NAMES
    )
    write_files(out, {PAGE: page.encode(), VERDICT: json_bytes(verdict)})
    return verdict


def _checked(inputs: Inputs, rule: Rule, out: Path, job: Job) -> tuple[str, str]:
    """Check what training needs, and that no input would be replaced, before any model is asked.

    Returns:
        The profile to train, and the one that requests use now.
    """
    check_folder(out)
    written = [(out / name).resolve() for name in (LABELLED, TRAIN)]
    for path in (inputs.questions, *inputs.labels):
        if path.resolve() in written:
            raise ValueError(f"{path} is a file that this command writes; use another --out")
    if router_folder(rule.router).resolve() == (out / CANDIDATE).resolve():
        raise ValueError(f"--router {rule.router} is where --out puts the candidate; use another")
    profiles = profiles_in(rule.router)
    name = own_profile(job.model, profiles) if rule.profile == "auto" else rule.profile
    profile = name or profiles[0]
    check_profile(profile)
    extendable(rule.router, [profile])
    before = profile if profile in profiles else chosen_profile(rule.router, "auto", job.model)
    for path in inputs.labels:
        read_outcomes(path)
    needed = inputs.judge != "silver"
    asked = {each.question for each in read_examples(inputs.questions, answers_needed=needed)}
    if few := _too_few(sum(map(is_held_out, asked))):
        raise ValueError(f"{inputs.questions}: {few}")
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
    pair: tuple[Router, Router], rows: Sequence[ReplayRow], rule: Rule, progress: Progress
) -> tuple[dict[str, Any], list[tuple[ReplayRow, int, int]]]:
    """Replay both routers on the held-out questions, as requests are routed.

    Returns:
        The figures of both (see `verdicts.compare`); and the questions whose route changed, with
        the old choice and the new one: 0, 1, 2 for A, B, C.
    """
    recorded = recorded_of(rows)
    advance = partial(progress, "replaying")

    def served(router: Router, alpha: float) -> Choices:
        """Route as requests are routed: B instead of A where the router is in doubt."""
        choices: Choices = route_all(router, recorded.questions, [alpha], advance).choices[0]
        doubted = [each is not None for each in router.doubts(recorded.questions)]
        choices[doubted] = choices[doubted].clip(min=1)
        return choices

    before, after = map(served, pair, _alphas(pair, rule))
    both = zip(rows, before.tolist(), after.tolist(), strict=True)
    found = compare(recorded, before, after)
    return {HELD_OUT: found}, [(row, old, new) for row, old, new in both if old != new]


def _alphas(pair: tuple[Router, Router], rule: Rule) -> list[float]:
    """Return the α of requests to the router in use, and to the candidate."""
    return [each.alpha if rule.alpha is None else rule.alpha for each in pair]


def _reasons(held_out: int, compared: dict[str, Any]) -> list[str]:
    """Return why the candidate may not be promoted."""
    if few := _too_few(held_out):
        return [few]
    return [
        f"{figure['worse']} ({held_out} questions, {HELD_OUT})"
        for found in compared.values()
        for figure in found["figures"]
        if figure["worse"]
    ]


def _too_few(held_out: int) -> str:
    """Return how many questions are needed if the held-out ones are too few; else nothing."""
    enough = round(MIN_QUESTIONS / SHARE_HELD_OUT, -1)
    return (
        f"{held_out} held-out questions are too few to compare on; {MIN_QUESTIONS} are needed, "
        f"so label about {enough:.0f} questions"
        if held_out < MIN_QUESTIONS
        else ""
    )
