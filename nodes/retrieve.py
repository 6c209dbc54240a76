"""Retrieve: one search for the question itself."""

from hopgate.nodes.run.events import hop_event
from hopgate.nodes.run.resources import RETRIEVER_FAILED, RetrievalFailed
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.spending import DeadlinePassed
from hopgate.nodes.run.state import Hop, State, Update, with_warning


async def retrieve(state: State, runtime: NodeRuntime) -> Update:
    """Search for the question; if the retriever fails, the answer has to do without sources."""
    query = state["standalone"]
    update: Update = {}
    runtime.leaves_room = True
    try:
        found = runtime.search(query, runtime.context.top_k, state.get("looked"))
        evidence = await runtime.in_time("the search", found)
    except (RetrievalFailed, DeadlinePassed) as error:
        if runtime.context.retriever_failure == "error":
            raise
        evidence = []
        late = f"{RETRIEVER_FAILED}: " if isinstance(error, DeadlinePassed) else ""
        update["decision"] = with_warning(state, f"{late}{error}; answered without sources")
    runtime.send(hop_event(1, query, evidence))
    hop = Hop(query=query, passage_ids=[hit["id"] for hit in evidence], thought="")
    return {**update, "evidence": evidence, "hops": [hop], "looked": None}
