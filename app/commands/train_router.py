"""`hopgate train-router`: a router for one's own LLM."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import click

from hopgate.commands.options import command, refuse
from hopgate.common.errors import TRAINING, require
from hopgate.terminal import pages
from hopgate.terminal.progress import resumable, stages

TRAINED_ONLY = (
    "reliability", "base", "objective", "asked", "epochs", "batch_size", "learning_rate", "seed",
)  # fmt: skip


@command("train-router")
def train_router(
    *,
    cost: Annotated[tuple[str, ...], {"metavar": "[PROFILE=]FILE"}],
    reliability: Path | None = None,
    add_to: Annotated[str | None, {"metavar": "ROUTER"}] = None,
    base: str = "builtin",
    objective: Literal["flare", "utility"] | None = None,
    asked: int | None = None,
    profile: str = "custom",
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: Annotated[int, click.IntRange(0, 2**32)] = 0,
    notes: Annotated[TextIO | None, click.File(encoding="utf-8")] = None,
    out: Path,
    overwrite: bool = False,
    dry_run: bool = False,
) -> None:
    """Fine-tune a router's cost weights (α = 0, one for each LLM) and reliability weights (α = 1).

    If it is interrupted, the same command resumes after the last completed epoch. No model is
    asked. If one strategy is right for all questions, that is the result, and no router is written.

    Args:
        cost: Labels of your LLM (JSONL: id, question, correct, label A, B or C); repeatable, for
            several files or several LLMs.
        reliability: Labels B (single-hop) and C (multi-hop); required without --add-to.
        add_to: Add your LLM to this router (builtin or a folder) without changing the rest: for
            labels of a few hundred questions.
        base: builtin, or a T5 to start from.
        objective: flare: hard labels, as published. utility: the outcomes of all strategies.
            Default: flare for a pretrained T5 and for labels without `correct`, else utility.
        asked: utility: the number of questions given to the LLMs, if the cost files leave out those
            that no strategy answered.
        profile: Name of the LLM, for cost files without PROFILE=.
        epochs: Default: depends on the base; published: 20.
        batch_size: Default: depends on the base; published: 64.
        learning_rate: Default: depends on the base; published: 3e-5.
        seed: Seed of the random numbers.
        notes: Markdown for the model card, e.g. the data's origin and licence.
        out: Folder to write to.
        overwrite: Replace an existing router.
        dry_run: Only check the input, and say how many questions each LLM has.
    """
    require("training a router" if add_to is None else "adding an LLM to a router", *TRAINING)
    from hopgate.classifiers.training import data
    from hopgate.classifiers.training.adding import add_profiles, extendable
    from hopgate.classifiers.training.train import train
    from hopgate.classifiers.training.writing import check_free

    files = cost_files(cost, profile)
    if add_to is not None:
        refuse(TRAINED_ONLY, "applies to training a network; leave it out with --add-to")
    elif reliability is None:
        raise ValueError("give --reliability FILE, or --add-to ROUTER to add to a trained router")
    check_free(out, overwrite)
    try:
        rows = {name: data.read_cost(name, paths) for name, paths in files.items()}
    except data.OneStrategy as found:
        return pages.output({"finding": str(found)}, pages.page)
    if add_to is not None:
        extendable(add_to, files)
        data.check_outcomes(rows)
    if dry_run:
        labels = {name: dict(Counter(row.label or "none" for row in rows[name])) for name in rows}
        return pages.output({"questions": labels, "calls": 0}, pages.page)
    written: dict[str, Any] = {"notes": notes.read() if notes else "", "overwrite": overwrite}
    if add_to is not None:
        training = add_profiles(add_to, files, out, **written)
    else:
        assert reliability is not None
        with resumable(), stages() as advance:
            training = train(
                files,
                reliability,
                out,
                base=base,
                objective=objective,
                asked=asked,
                epochs=epochs,
                batch_size=batch_size,
                learning_rate=learning_rate,
                seed=seed,
                advance=advance,
                **written,
            )
    pages.output(training, lambda _: pages.line(f'Use it: hopgate ask "…" --router {out}'))


def cost_files(given: tuple[str, ...], profile: str) -> dict[str, list[Path]]:
    """Group `[PROFILE=]FILE` by profile; a file whose own name contains `=` needs no profile."""
    files: dict[str, list[Path]] = {}
    for each in given:
        name, equals, path = each.partition("=")
        named = equals and not Path(each).exists()
        files.setdefault(name if named else profile, []).append(Path(path if named else each))
    return files
