"""Sub-answer: answer one sub-question over the passages of its hop."""

from hopgate.common.words import sentences
from hopgate.nodes.answers.reading import read_answer
from hopgate.nodes.loop import add_thought, leaving_room
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import MultihopState, Update
from hopgate.nodes.texts.text import as_data, first_line, has_words

MAX_TOKENS = 40
MAX_ANSWER_CHARS = 200


@leaving_room
async def sub_answer(state: MultihopState, runtime: NodeRuntime) -> Update:
    """Answer the hop's sub-question in a few words and decide whether to continue."""
    return add_thought(state, runtime, await _answer(state, runtime))


async def _answer(state: MultihopState, runtime: NodeRuntime) -> str:
    """Return the answer on one line, empty if the model has none."""
    model = await runtime.model()
    hop, by_id = state["hops"][-1], {hit["id"]: hit for hit in state["evidence"]}
    passages = [by_id[each] for each in hop["passage_ids"] if each in by_id]
    shown = prompts.fit(passages, model.evidence_chars)
    request = prompts.grounded(model.layout, shown, hop["query"])
    messages = prompts.render(model.layout, prompts.SUB_ANSWER, request, prompts.SUB_ANSWER_DEMOS)
    return read_sub_answer(await runtime.complete_line(messages, max_tokens=MAX_TOKENS))


def read_sub_answer(reply: str) -> str:
    """Return the first sentence of a reply, without the full stop; empty for "I don't know"."""
    answer = read_answer(first_line(reply), [])
    parts = sentences(as_data(answer.text)) if answer.known else []
    text = parts[0][:MAX_ANSWER_CHARS].strip() if parts else ""
    if not has_words(text):
        return ""
    return text[:-1] if text.endswith(("。", ".")) and text.count(text[-1]) == 1 else text
