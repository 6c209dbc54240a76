"""Escalate: withdraw an answer in doubt and try one strategy deeper."""

from langchain_core.messages import RemoveMessage
from langgraph.types import Overwrite

from hopgate.nodes.run.events import EscalateEvent
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import Decision, Escalation, State, Update


async def escalate(state: State, runtime: NodeRuntime) -> Update:
    """Remove the answer and switch to the strategy that `generate` chose.

    `ircot` continues with the hops and evidence so far; sub-questions start with no hops.
    """
    decision = state["decision"]
    deeper = decision["escalate_to"] or decision["strategy"]
    step = Escalation(
        {"from": decision["strategy"], "to": deeper, "reason": str(decision["doubt"])}
    )
    runtime.send(EscalateEvent({"event": "escalate", **step}))
    decomposes = decision.get("multihop") == "decompose" or bool(state["sub_questions"])
    update: Update = {
        "messages": [RemoveMessage(id=str(state["messages"][-1].id))],
        "answer": "",
        "citations": [],
        "decision": Decision(
            strategy=deeper, escalate_to=None, escalated=[*decision.get("escalated", []), step]
        ),
    }
    if deeper == "multi" and decomposes:
        update["hops"] = Overwrite([])
    return update
