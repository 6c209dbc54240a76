"""Decisions that more than the graph's nodes take: the gate, alone."""

import asyncio
from datetime import date
from pathlib import Path
from zoneinfo import ZoneInfo

from hopgate.graphs.context import FIXED, Context
from hopgate.graphs.resources import Resources, layout_for
from hopgate.models.chat import ChatModel, Completion, Layout
from hopgate.nodes import demonstrations
from hopgate.nodes import gate as gating
from hopgate.nodes.gate import GateDecision
from hopgate.nodes.prompts import Demo

SHIPPED_DEMOS = 4  # RetrievalQA, figure 4: the best number
SHIPPED_CONFIDENCE_DEMOS = 12  # in the turns layout; docs/results/gate.md


async def gate_decision(
    question: str, context: Context, resources: Resources
) -> tuple[GateDecision, list[Completion]]:
    """Decide whether a question needs outside knowledge, as the gate node does.

    Args:
        question: The standalone question.
        context: The request's settings.
        resources: What the app handed in.

    Returns:
        The decision and the calls it took, none or one.

    Raises:
        ModelError: The model did not answer, or gave no log-probabilities where they are needed.
        ValueError: The pool of demonstrations is not usable.
    """
    mode = context.gate
    if context.strategy != "auto":
        reason = f"the request asks for strategy {context.strategy!r}"
        return gating.decided(mode, "skipped", context.strategy != "none", reason), []
    if context.alpha == 1:
        return gating.decided(mode, "skipped", True, "α = 1 promises a retrieval"), []
    if mode == "off":
        return gating.decided(mode, "skipped", True, "no gate: the router alone decides"), []
    if mode == "always":
        return gating.decided(mode, "yes", True, "the request says always"), []
    if mode == "never":
        return gating.decided(mode, "no", False, "the request says never"), []
    model = await resources.model(context)
    asked = model.gate if mode == "auto" else mode
    decision, completion = await (
        _draft(question, model, context)
        if asked == "draft"
        else _ask(question, model, asked, context, resources)
    )
    return decision, [completion]


async def _draft(
    question: str, model: ChatModel, context: Context
) -> tuple[GateDecision, Completion]:
    threshold = context.gate_threshold
    return await gating.draft(
        model,
        question,
        layout=layout_for(model, context),
        threshold=model.draft_threshold if threshold is None else threshold,
    )


async def _ask(
    question: str,
    model: ChatModel,
    mode: gating.AskedMode,
    context: Context,
    resources: Resources,
) -> tuple[GateDecision, Completion]:
    layout = layout_for(model, context)
    threshold = context.gate_threshold
    return await gating.ask(
        model,
        question,
        mode=mode,
        layout=layout,
        today=_today(context, resources).isoformat() if context.gate_date else None,
        demos=await _demos(question, mode, layout, context),
        threshold=model.gate_threshold if threshold is None else threshold,
        retrieve_if_invalid=context.gate_invalid == "retrieve",
    )


def _today(context: Context, resources: Resources) -> date:
    """Return the request's date, else the clock's in the request's time zone."""
    if context.today:
        return context.today
    now = resources.clock()
    if now.tzinfo is None:
        raise ValueError(f"the clock gives {now}, without a time zone; give an aware datetime")
    zone = ZoneInfo(context.timezone) if context.timezone else None  # None: the system's
    return now.astimezone(zone).date()


async def _demos(
    question: str, mode: gating.AskedMode, layout: Layout, context: Context
) -> tuple[Demo, ...]:
    if mode == "vanilla":
        return ()
    shipped = (
        SHIPPED_CONFIDENCE_DEMOS if mode == "confidence" and layout == "turns" else SHIPPED_DEMOS
    )
    count = shipped if context.gate_demos is None else context.gate_demos
    if context.demos == FIXED or not count:
        return demonstrations.fixed(count)

    def pick() -> tuple[Demo, ...]:
        return demonstrations.load_pool(Path(context.demos)).pick(question, count)

    return await asyncio.to_thread(pick)
