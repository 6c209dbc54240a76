"""`hopgate calibrate`: the α, or the gate's threshold, that meets a goal."""

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from hopgate.commands.options import Asking, RecordedFiles, command, refuse, request_context
from hopgate.terminal import pages
from hopgate.terminal.progress import stage

GOALS = ("budget_steps", "budget_calls", "budget_tokens", "min_accuracy")
PROMISE = ("no_worse_than", "by", "confidence")
ALPHA_ONLY = ("router", "profile", "questions", "steps_multi", *GOALS, *PROMISE, "save")
DEFAULT_BY, CONFIDENCE = 0.02, 0.95
"""Of `--no-worse-than`."""
GATE_FIELDS = ("model", "layout", "demos", "gate_demos", "gate_date", "today")
GATE_ONLY = (*GATE_FIELDS, "min_recall", "out", "concurrency", "overwrite")
COSTS = ("steps", "calls", "tokens")
NAMED_POINTS = ("shipped", "chosen")
GATE_COLUMNS = (
    *("threshold", "retrieves if needed=needed", "otherwise=known"),
    *("accuracy", "balanced=balanced_accuracy"),
)

Budget = Annotated[float | None, click.FloatRange(min=0)]
Share = Annotated[float | None, click.FloatRange(0, 1)]


@command(context=("router", *GATE_FIELDS))
def calibrate(
    *,
    recorded: RecordedFiles,
    budget_steps: Budget = None,
    budget_calls: Budget = None,
    budget_tokens: Budget = None,
    min_accuracy: Share = None,
    no_worse_than: Literal["single", "multi"] | None = None,
    by: Share = None,
    confidence: Annotated[float | None, click.FloatRange(0.5, 1, max_open=True)] = None,
    save: Annotated[str | None, {"metavar": "NAME"}] = None,
    gate: Literal["confidence", "draft"] | None = None,
    min_recall: Share = None,
    out: Path | None = None,
    asking: Asking,
    settings: dict[str, Any],
) -> None:
    """Choose the α that meets a goal on recorded outcomes, or a gate's threshold.

    Without --gate: a budget or an accuracy floor gives α; with --confidence, one that keeps it on
    other questions like these, too. Exit code 1 if these labels cannot show that for any α. With
    --gate, the model is prompted, and the threshold that best separates the questions that need
    retrieval is chosen.

    Args:
        recorded: The outcomes.
        budget_steps: Maximum mean steps; picks the most accurate α within that budget.
        budget_calls: The same for model calls, without the gate's.
        budget_tokens: The same for tokens, as `label` counts them.
        min_accuracy: Minimum accuracy; picks the cheapest α that reaches it.
        no_worse_than: Pick the cheapest α whose accuracy is at most --by below that of this
            strategy for every question.
        by: --no-worse-than: 0 to 1. Default: 0.02.
        confidence: Promise the goal: the chance that it is kept on questions like these, 0.5 to 1.
            Default: 0.95 for --no-worse-than; otherwise it is met on the labels alone.
        save: Save α with the router, for `--alpha NAME`.
        gate: Choose this gate's threshold, not α. Then --labels has rows with question and: answer
            (Yes or No), correct (see `label`), or a prediction (see `eval`).
        min_recall: --gate: minimum recall; picks the cheapest threshold that reaches it. Default:
            the best balanced accuracy.
        out: --gate: folder for the curve and the answers, so that it can resume.
        asking: How the model is asked.
        settings: Fields of `Context`.
    """
    context = request_context(settings)
    if gate is None:
        refuse(GATE_ONLY, "cannot be used without --gate")
        bounds = (budget_steps, budget_calls, budget_tokens, min_accuracy)
        given = [(name, each) for name, each in zip(GOALS, bounds, strict=True) if each is not None]
        if no_worse_than is None:
            refuse(("by",), "needs --no-worse-than")
        else:
            given.append(("no_worse_than", DEFAULT_BY if by is None else by))
            confidence = confidence or CONFIDENCE
        if len(given) != 1:
            raise click.UsageError(
                "give one of --budget-steps, --budget-calls, --budget-tokens, --min-accuracy and "
                "--no-worse-than"
            )
        from hopgate.evaluation.measuring import calibration

        goal = calibration.Goal(*given[0], confidence, no_worse_than)
        which = context.router, recorded.profile
        with stage("routing") as advance:
            found = calibration.calibrate(*which, recorded.outcomes, goal, save, advance)
        pages.output(found, _show_alpha)
        return
    from hopgate.evaluation.measuring.gates import calibrate_gate

    refuse(ALPHA_ONLY, "cannot be used with --gate")
    with asking.job(settings) as job:
        found = calibrate_gate(recorded.labels, gate, job, min_recall=min_recall, out=out)
    found["use"] = _usage(found, settings)
    pages.output(found, _show_gate, out)


def _show_alpha(found: dict[str, Any]) -> None:
    if promise := found.get("promise"):
        shown = {"promise": promise} | {name: found[name] for name in ("alpha", "accuracy")}
        shown |= {name: found[name] for name in COSTS if name in found}
    else:
        cost = next(name for name in COSTS if name in found["interval"])
        shown = {name: pages.between(name, found) for name in ("alpha", "accuracy", cost)}
        if found["infeasible"]:
            shown["!"] = (
                f"no α met the goal in {found['infeasible']} of {found['resamples']} resamples of "
                "the questions"
            )
    shown |= {"shares": found["shares"]}
    shown |= {f"always {name}": found[name] for name in ("single", "multi")}
    pages.page(shown)
    alpha = found["saved"] or f"{found['alpha']:g}"
    router = "" if found["router"] == "builtin" else f" --router {found['router']}"
    pages.line(f'Use it: hopgate ask "…" --alpha {alpha} --profile {found["profile"]}{router}')


def _usage(found: dict[str, Any], settings: dict[str, Any]) -> str:
    """Return the command that uses a threshold, with the settings that it was chosen for."""
    parts = ["--gate", found["gate"], "--gate-threshold", str(found["threshold"])]
    for name, value in settings.items():
        option = name.replace("_", "-")
        if value is False:
            parts.append(f"--no-{option}")
        elif name != "today":
            parts += [f"--{option}", str(value)]
    return 'hopgate ask "…" ' + shlex.join(parts)


def _show_gate(found: dict[str, Any], out: Path | None) -> None:
    points = {f"{point['threshold']:.4g}": point for point in pages.spread(found["curve"])}
    points |= {f"{name} {found[name]['threshold']:.4g}": found[name] for name in NAMED_POINTS}
    pages.table(
        f"{found['questions']} questions, of which {found['needed']} need retrieval",
        GATE_COLUMNS,
        points,
    )
    shown = {name: pages.between(name, found) for name in ("threshold", "auc")}
    if found["invalid"]:
        shown["!"] = f"{found['invalid']} replies were neither Yes nor No; they retrieve"
    if found["interval"]["auc"][0] <= 0.5:
        shown["! AUC"] = (
            "on these questions the gate cannot be told from chance (AUC 0.5); do not use this "
            "threshold"
        )
    pages.page(shown | {"out": str(out / "calibration.json") if out else ""})
    pages.line(f"Use it: {found['use']}")
