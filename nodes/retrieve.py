"""Retrieve: one search for the question itself."""

from hopgate.nodes.events import hop_event
from hopgate.nodes.named import RETRIEVER_FAILED, RetrievalFailed
from hopgate.nodes.runtime import NodeRuntime, with_warning
from hopgate.nodes.spending import DeadlinePassed
from hopgate.nodes.state import Hop, State, Update


async def retrieve(state: State, runtime: NodeRuntime) -> Update:
    """Search for the question; if the retriever fails, the answer has to do without sources."""
    query = state["standalone"]
    update: Update = {}
    runtime.leaves_room = True
    try:
        found = runtime.search(query, runtime.context.top_k, state.get("looked"))
        evidence = await runtime.in_time("the search", found)
    except (RetrievalFailed, DeadlinePassed) as error:
        evidence = []
        late = f"{RETRIEVER_FAILED}: " if isinstance(error, DeadlinePassed) else ""
        update["decision"] = with_warning(state, f"{late}{error}; answered without sources")
    runtime.send(hop_event(1, query, evidence))
    hop = Hop(query=query, passage_ids=[hit["id"] for hit in evidence], thought="")
    return {**update, "evidence": evidence, "hops": [hop], "looked": None}
