"""Route: no retrieval, one step or several, at the request's α."""

import logging
from functools import lru_cache

from hopgate.classifiers.decision import RouterReply, choose
from hopgate.common.strategies import LABEL_OF, STRATEGY_OF, Strategy
from hopgate.nodes.run.events import RouteEvent
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import Decision, GateDecision, RouteDecision, State, Update

log = logging.getLogger(__name__)


async def route(state: State, runtime: NodeRuntime) -> Update:
    """Choose how deep to retrieve; a strategy that a person or the request set wins."""
    context, decision, alpha = runtime.context, state["decision"], await runtime.alpha()
    edited = decision.get("strategy")
    if edited == "single" or edited == "multi":
        found = _forced(edited, alpha, "the strategy was set in the state")
    elif context.strategy != "auto":
        reason = f"the request sets strategy {context.strategy!r}"
        found = _forced(context.strategy, alpha, reason)
    else:
        routed = await runtime.route(state["standalone"])
        found = _classified(routed, alpha, decision["gate"])
        if advice := await guess(found["profile"], runtime):
            _log_once(advice)
    strategy = STRATEGY_OF[found["label"]]
    runtime.send(RouteEvent(event="route", strategy=strategy, **found))
    decision = Decision(route=found, strategy=strategy, multihop=context.multihop)
    return {"decision": decision}


@lru_cache  # bounded, because the names of models come from requests
def _log_once(advice: str) -> None:
    log.warning(advice)


async def guess(profile: str, runtime: NodeRuntime) -> str | None:
    """Return a warning if the request's model is only taken for the profile's LLM."""
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
        label=LABEL_OF[strategy], probs={}, alpha=alpha, source="forced", profile="", reason=reason
    )


def _classified(found: RouterReply, alpha: float, gate: GateDecision) -> RouteDecision:
    """Choose the likeliest label, or B instead of A if the gate decided to retrieve."""
    label, reason = choose(found.probs, alpha, found.doubt)
    if label == "A" and gate["retrieve"] and gate["answer"] != "skipped":
        label, reason = "B", "A is the likeliest, but the gate decided to retrieve"
    return RouteDecision(
        label=label,
        probs=found.probs,
        alpha=alpha,
        source=found.source,
        profile=found.profile,
        reason=reason,
    )
