"""Short answers: the papers' prompts word for word (RetrievalQA, figures 7 and 8)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopgate.models.chat import Completion, Layout
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.texts.text import inert
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage

MAX_TOKENS = 100  # RetrievalQA, appendix A.4


async def prompt_answer(
    question: str,
    shown: Sequence[Hit],
    runtime: NodeRuntime,
    *,
    system: str = "",
    stop: Sequence[str] = (),
    **options: Any,
) -> Completion:
    """Ask the model for a short answer, over passages if there are any.

    Args:
        question: The question.
        shown: The passages.
        runtime: The request's settings and model.
        system: Instructions and the conversation's system messages.
        stop: Texts that end the answer, besides the layout's own.
        options: More of `hopgate.models.chat.complete`.

    Raises:
        ModelError: No answer from the model.
    """
    layout = (await runtime.model()).layout
    messages = _prompt(question, shown, layout, system)
    limit = await runtime.answer_tokens(messages)
    return await runtime.complete(
        messages,
        max_tokens=MAX_TOKENS if limit is None else min(MAX_TOKENS, limit),
        stop=[*(["\n"] if layout == "turns" else []), *stop],
        **options,
    )


def _prompt(
    question: str, shown: Sequence[Hit], layout: Layout, system: str
) -> list["BaseMessage"]:
    if shown:
        request = prompts.grounded(layout, shown, question)
        instruction, demos = prompts.GROUNDED, prompts.GROUNDED_DEMOS
        if layout == "inline":
            instruction += prompts.CITE
    else:
        request = prompts.asked(layout, inert(question))
        instruction, demos = prompts.DIRECT, prompts.DIRECT_DEMOS
    return prompts.render(layout, instruction, request, demos, system=system)
