"""Route: no retrieval, one step or several, at the request's α."""

import asyncio
from collections.abc import Mapping, Sequence

from hopgate.common.strategies import LABEL_OF, LABELS, STRATEGY_OF, Label, Strategy
from hopgate.nodes.events import RouteEvent
from hopgate.nodes.runtime import NodeRuntime, Router
from hopgate.nodes.state import Decision, GateDecision, RouteDecision, State, Update


async def route(state: State, runtime: NodeRuntime) -> Update:
    """Choose how deep to retrieve; a strategy that a person or the request set wins."""
    context, decision = runtime.context, state["decision"]
    edited = decision.get("strategy")
    if edited == "single" or edited == "multi":
        found = _forced(edited, context.alpha, "the strategy was set in the state")
    elif context.strategy != "auto":
        reason = f"the request sets strategy {context.strategy!r}"
        found = _forced(context.strategy, context.alpha, reason)
    else:
        question, gate = state["standalone"], decision["gate"]
        found = await asyncio.to_thread(_classified, runtime, question, gate)
    strategy = STRATEGY_OF[found["label"]]
    runtime.send(RouteEvent(event="route", strategy=strategy, **found))
    decision = Decision(route=found, strategy=strategy, multihop=context.multihop)
    return {"decision": decision}


def _forced(strategy: Strategy, alpha: float, reason: str) -> RouteDecision:
    return RouteDecision(
        label=LABEL_OF[strategy],
        probs={},
        alpha=alpha,
        source="forced",
        profile="",
        reason=reason,
    )


def _classified(runtime: NodeRuntime, question: str, gate: GateDecision) -> RouteDecision:
    """Choose the likeliest label, or B instead of A if the gate decided to retrieve; may block."""
    router, alpha = runtime.router(), runtime.context.alpha
    (probs,), (doubt,) = router.route([question], alpha), doubts(router, [question])
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
