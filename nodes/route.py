"""Route: no retrieval, one step or several, at the request's α."""

import asyncio
from collections.abc import Mapping, Sequence

from hopgate.common.strategies import LABEL_OF, LABELS, STRATEGY_OF, Label, Strategy
from hopgate.nodes.events import RouteEvent
from hopgate.nodes.runtime import NodeRuntime, Router, with_warning
from hopgate.nodes.state import Decision, GateDecision, RouteDecision, State, Update


async def route(state: State, runtime: NodeRuntime) -> Update:
    """Choose how deep to retrieve; a strategy that a person or the request set wins."""
    context, decision = runtime.context, state["decision"]
    edited, warnings = decision.get("strategy"), Decision()
    if edited == "single" or edited == "multi":
        found = _forced(edited, context.alpha, "the strategy was set in the state")
    elif context.strategy != "auto":
        reason = f"the request sets strategy {context.strategy!r}"
        found = _forced(context.strategy, context.alpha, reason)
    else:
        router = await runtime.router()
        found = await _classified(router, state["standalone"], context.alpha, decision["gate"])
        if guess := await _guess(found["profile"], runtime):
            warnings = with_warning(state, guess)
    strategy = STRATEGY_OF[found["label"]]
    runtime.send(RouteEvent(event="route", strategy=strategy, **found))
    decision = Decision(route=found, strategy=strategy, multihop=context.multihop)
    return {"decision": decision | warnings}


async def _guess(profile: str, runtime: NodeRuntime) -> str | None:
    if runtime.context.profile != "auto" or runtime.resources.router is not None:
        return None
    return guessed((await runtime.model()).name, profile)


def guessed(model: str, profile: str) -> str | None:
    """Return a warning if the router takes a model that it does not know for another one.

    Args:
        model: The model's name.
        profile: The profile that the router chose for it.
    """
    from hopgate.classifiers.profiles import FALLBACK

    if profile != FALLBACK or "flan" in model.lower():
        return None
    return (
        f"the router does not know {model} and takes it for {profile}; set profile to the LLM "
        "most like it, or train a router on it with `hopgate train-router`"
    )


def _forced(strategy: Strategy, alpha: float, reason: str) -> RouteDecision:
    return RouteDecision(
        label=LABEL_OF[strategy],
        probs={},
        alpha=alpha,
        source="forced",
        profile="",
        reason=reason,
    )


async def _classified(
    router: Router, question: str, alpha: float, gate: GateDecision
) -> RouteDecision:
    """Choose the likeliest label, or B instead of A if the gate decided to retrieve."""
    (probs,), (doubt,) = await asyncio.to_thread(
        lambda: (router.route([question], alpha), doubts(router, [question]))
    )
    probs = {label: float(probs[label]) for label in LABELS}
    label, reason = choose(probs, alpha, doubt)
    if label == "A" and gate["retrieve"] and gate["answer"] != "skipped":
        label, reason = "B", "A is the likeliest, but the gate decided to retrieve"
    return RouteDecision(
        label=label,
        probs=probs,
        alpha=alpha,
        source=str(getattr(router, "source", "custom")),
        profile=str(getattr(router, "profile", "")),
        reason=reason,
    )


def choose(probs: Mapping[str, float], alpha: float, doubt: str | None) -> tuple[Label, str]:
    """Return the likeliest label, or B where A cannot be right, with the reason.

    Args:
        probs: The router's probabilities of A, B and C.
        alpha: The request's α; 1 always retrieves.
        doubt: Why the router's decision cannot be trusted, or None; then B replaces A.
    """
    label = likeliest(probs)
    if label == "A" and doubt:
        return "B", f"A is the likeliest, but {doubt}"
    if label == "A" and alpha == 1:
        return "B", "A is the likeliest, but α = 1 always retrieves"
    return label, f"{label} is the likeliest at α = {alpha:g}" + (f"; {doubt}" if doubt else "")


def likeliest(probs: Mapping[str, float]) -> Label:
    """Return the label with the highest probability; the cheaper one of equals."""
    return max(LABELS, key=lambda label: probs[label])


def doubts(router: Router, questions: Sequence[str]) -> list[str | None]:
    """Return why the router's decisions cannot be trusted, if the router can tell."""
    known = getattr(router, "doubts", None)
    found: list[str | None] = known(questions) if known else [None] * len(questions)
    return found
