"""Reason: one sentence of thought over the evidence (IRCoT).

Trivedi et al. 2023, as Adaptive-RAG and Flare-Aug run it.
"""

from hopgate.common.words import sentences
from hopgate.nodes.loop import add_thought, is_final, leaving_room
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.prompts.own import fill
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import MultihopState, Update
from hopgate.nodes.texts.text import as_data, first_line, has_words

MAX_TOKENS = 80  # a long sentence
MAX_THOUGHT_CHARS = 600  # some endpoints ignore `max_tokens`


@leaving_room
async def reason(state: MultihopState, runtime: NodeRuntime) -> Update:
    """Write one sentence over the evidence and decide whether to continue."""
    return add_thought(state, runtime, await _think(state, runtime))


async def _think(state: MultihopState, runtime: NodeRuntime) -> str:
    """Return the next sentence of reasoning, empty if the model wrote none."""
    model = await runtime.model()
    shown = prompts.fit(state["evidence"], model.evidence_chars)
    thoughts = as_data(" ".join(hop["thought"] for hop in state["hops"][:-1]))
    if own := runtime.resources.prompts.get("reason"):
        passages = prompts.paragraphs("inline", shown)
        question = as_data(state["standalone"])
        messages = fill(own, question=question, passages=passages, reasoning=thoughts)
    else:
        request = prompts.grounded(model.layout, shown, state["standalone"])
        if thoughts:
            request += f"\nReasoning: {thoughts}"
        messages = prompts.render(
            model.layout, prompts.REASON, request, prompts.REASON_DEMOS, cue="Next sentence:"
        )
    return read_thought(await runtime.complete_line(messages, max_tokens=MAX_TOKENS))


def read_thought(reply: str) -> str:
    """Return the first sentence of a reply, with the next one if that states the answer."""
    parts = sentences(first_line(reply))
    count = 2 if len(parts) > 1 and is_final(parts[1]) else 1
    thought = " ".join(parts[:count])[:MAX_THOUGHT_CHARS].strip()
    return thought if has_words(thought) else ""
