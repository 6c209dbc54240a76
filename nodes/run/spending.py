"""Spending: sums of costs, estimated tokens, and the errors of turns that have cost enough."""

from collections.abc import Iterable
from typing import Literal, cast, get_args

from hopgate.nodes.run.state import Usage

Count = Literal["retrieval_steps", "llm_calls", "prompt_tokens", "completion_tokens"]
COUNTS: tuple[Count, ...] = get_args(Count)

VISIT_USAGE = "visit_usage"
"""The key of a visit's own cost in a node's update, and its name on a node's error."""
RUN_USER = "run_user"
"""The key of the authenticated user's name, there and on an error."""
RUN = "__hopgate_run"
"""The key of a run's config for a list that the first visit to a node fills. LangGraph keeps keys
that start with two underscores out of checkpoints and traces."""
BYTES_PER_TOKEN = 3
"""For endpoints that do not count: less than English prose has (4 to 5), so it counts too many."""


class BudgetSpent(RuntimeError):
    """The turn has used up its budget; the message names the setting."""

    fault = "budget_spent"


class DeadlinePassed(RuntimeError):
    """The turn has taken longer than it may; the message names the node and the setting."""

    fault = "deadline_passed"


def tokens_of(usage: Usage) -> int:
    """Return the tokens of a usage."""
    return usage["prompt_tokens"] + usage["completion_tokens"]


def estimated_tokens(texts: Iterable[str]) -> int:
    """Return about how many tokens texts have, rather too many than too few."""
    return sum(len(text.encode("utf-8", "replace")) for text in texts) // BYTES_PER_TOKEN + 1


def add_usage(before: Usage, more: Usage) -> Usage:
    """Return the sum of two usages."""
    times = dict(before["ms"])
    for node, ms in more["ms"].items():
        times[node] = round(times.get(node, 0.0) + ms, 1)
    return cast(Usage, {**{name: before[name] + more[name] for name in COUNTS}, "ms": times})


def spent_by(error: BaseException) -> Usage | None:
    """Return the cost of a turn that an error ended, if a node raised it."""
    found: Usage | None = getattr(error, "usage", None)
    return found
