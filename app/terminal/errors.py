"""Errors as one line, with their exit code."""

from collections.abc import Mapping
from typing import Any

from hopgate.common.errors import explain, reason

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def explain_error(error: Exception) -> tuple[str, int]:
    """Return an error as one line, with its exit code."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return explain(error, lambda name: f"--{name.replace('_', '-')}"), 2
    text = reason(error)
    if isinstance(error, ValueError):
        return text, 2
    if isinstance(error, RuntimeError):  # see `hopgate.nodes.run.spending.spent_by`
        usage: Any = getattr(error, "usage", None)
        if usage and usage["llm_calls"] + usage["retrieval_steps"]:
            text += f" (cost so far: {counts(usage)})"
        return text, 1
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}", 1
    return f"{type(error).__name__}: {text}; run again with --debug for the traceback", 1


def counts(usage: Mapping[str, Any]) -> str:
    """Return the cost of a run, without times."""
    searches, calls = usage["retrieval_steps"], usage["llm_calls"]
    return (
        f"{searches} retrieval{'s' * (searches != 1)}, {calls} model call{'s' * (calls != 1)}, "
        f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    )
