"""Feedback on an answer of a stored thread."""

from typing import TYPE_CHECKING

from langchain_core.runnables import RunnableConfig

from hopgate.nodes.run.feedback import NODE, Feedback, Thumbs, feedback_edit

if TYPE_CHECKING:
    from hopgate.graphs.compiled import AdaptiveGraph


async def give_feedback(
    graph: "AdaptiveGraph",
    config: RunnableConfig,
    *,
    thumbs: Thumbs | None = None,
    answer: str | None = None,
    message_id: str | None = None,
) -> Feedback | None:
    """Keep a user's feedback on an answer in the state of its thread (`feedback`).

    New feedback on an answer replaces the old one. Nothing runs, and the thread goes on as before.

    Args:
        graph: The graph that answered, with its checkpointer.
        config: The thread; a `checkpoint_id` has no effect. Its `metadata` is stored with the edit.
        thumbs: The user's verdict.
        answer: The right answer, at most `nodes.run.feedback.MAX_ANSWER_CHARS` characters. If
            this and `thumbs` are both missing, earlier feedback is taken back.
        message_id: The id of the answer's message; None is the newest answer.

    Returns:
        The feedback kept; None if it was taken back.

    Raises:
        UnknownAnswer: There is no such answer, or no such thread.
        UnfinishedTurn: The thread's newest question is not answered yet.
        ValueError: The feedback cannot be used.
    """
    thread: RunnableConfig = {
        "configurable": {"thread_id": config["configurable"]["thread_id"]},
        "metadata": config.get("metadata", {}),
    }
    state = await graph.aget_state(thread)
    rated, given = feedback_edit(
        state.values, state.next, thumbs=thumbs, answer=answer, message_id=message_id
    )
    if given or rated in state.values.get("feedback", {}):
        await graph.aupdate_state(thread, {"feedback": {rated: given}}, as_node=NODE)
    return given
