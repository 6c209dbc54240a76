"""Spending: the cost of a run and its turn so far, whatever their stored state says.

A run's nodes share one `Spending`, so nodes that run side by side are counted too. The threads of a
graph share its `Accounts`, so a resumed or forked run cannot start from zero.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast, get_args

from hopgate.classifiers.decision import RouterReply
from hopgate.nodes.run.state import NO_USAGE, Usage, merge_usage

Count = Literal["retrieval_steps", "llm_calls", "prompt_tokens", "completion_tokens"]
COUNTS: tuple[Count, ...] = get_args(Count)

KEY = "__hopgate_spending"
"""Where the run's config holds its `Spending`. LangGraph keeps keys that start with two underscores
out of checkpoints and traces."""
RUN_USAGE = "run_usage"
"""The key of the run's own cost in a node's update, and its name on a node's error."""
RUN_USER = "run_user"
"""The key of the authenticated user's name, there and on an error."""
KEPT_THREADS = 10_000
BYTES_PER_TOKEN = 3
"""For endpoints that do not count: less than English prose has (4 to 5), so it counts too many."""


class BudgetSpent(RuntimeError):
    """The turn has used up its budget; the message names the setting."""

    fault = "budget_spent"


class DeadlinePassed(RuntimeError):
    """The turn has taken longer than it may; the message names the node and the setting."""

    fault = "deadline_passed"


@dataclass
class Account:
    """One thread's newest turn, as this process saw it.

    Attributes:
        spent: The cost of all its runs, forks and failed visits included.
        unsaved: The turn's cost after a visit that the main graph's state does not show: one that
            failed, or one of the loop.
    """

    spent: Usage = field(default_factory=NO_USAGE.copy)
    unsaved: Usage = field(default_factory=NO_USAGE.copy)


class Accounts:
    """The accounts of a graph's threads; of the newest ones, if there are very many."""

    def __init__(self) -> None:
        """Start without threads."""
        self._cell = lru_cache(KEPT_THREADS)(lambda thread: list[Account]())

    def of(self, thread: str | None, state: Mapping[str, Any]) -> Account:
        """Return the account of a thread's turn, or a new one for a run without a thread.

        Args:
            thread: The thread's id.
            state: Its state; a new account starts from its usage.
        """
        cell = [] if thread is None else self._cell(thread)
        if not cell:
            cell.append(Account(spent={**NO_USAGE, **(state.get("usage") or {})}))
        return cell[0]

    def open(self, thread: str | None, account: Account) -> None:
        """Make an account that of a thread; the thread's last turn is closed."""
        if thread is not None:
            self._cell(thread)[:] = [account]


class Spending:
    """The cost of one run, and of its turn before it.

    Attributes:
        usage: The cost of this run alone.
        account: The thread's.
        began: When the run's first node started, in seconds by the app's clock.
        place: The task of another graph that the run is part of; its thread can have several.
        routed: The router's replies in this run, by question and α.
    """

    def __init__(self, *, forks: bool = False, place: str = "") -> None:
        """Start from zero.

        Args:
            forks: Whether the run names the checkpoint that it starts from, so that only the steps
                which led there count.
            place: See above.
        """
        self.place = place
        self._forks = forks
        self.usage: Usage = {**NO_USAGE, "ms": {}}
        self.account = Account()
        self.began: float | None = None
        self.routed: dict[tuple[str, float], RouterReply] = {}
        self._started = 0.0
        self._before = NO_USAGE

    def enter(self, account: Account, state: Mapping[str, Any], now: float) -> None:
        """Note where the run goes on, when its first node starts."""
        self.account, self.began, self._started = account, now, time.monotonic()
        shown = state.get("usage") or NO_USAGE
        self._before = shown if self._forks else merge_usage(shown, account.unsaved)

    def begin_turn(self, start: "Spending") -> None:
        """Go on with a new turn, after what its start cost."""
        self.account, self.began, self._started = start.account, start.began, start._started
        self._before = NO_USAGE
        self.usage = add_usage(self.usage, start.usage)

    @property
    def tokens(self) -> int:
        """The tokens of this run."""
        return self.usage["prompt_tokens"] + self.usage["completion_tokens"]

    def total(self) -> Usage:
        """Return the cost of the turn, with this run."""
        return add_usage(self._before, self.usage)

    def seconds(self, now: float) -> float:
        """Return how long the turn has run; pauses between its runs do not count.

        A clock that is set back gains no time: the monotonic one goes on.
        """
        before = sum(self._before["ms"].values()) / 1000
        if self.began is None:
            return before
        return before + max(now - self.began, time.monotonic() - self._started)

    def used(self, *names: Count, of_thread: bool) -> int:
        """Return a count of the turn.

        Args:
            names: The quantities to count.
            of_thread: Whether to count what this thread's other runs and forks of the turn cost.
        """
        spent, total = self.account.spent, self.total()
        run = sum(total[name] for name in names)
        return max(run, sum(spent[name] for name in names)) if of_thread else run

    def add(self, **counts: int) -> None:
        """Add to counts of `Usage`, by name."""
        for usage in (self.usage, self.account.spent):
            for name, number in counts.items():
                usage[name] += number  # type: ignore[literal-required]

    def end_visit(self, node: str, ms: float, *, in_loop: bool) -> Usage:
        """Add the time of a visit, and return the turn's cost as the state will show it."""
        times = self.usage["ms"]
        times[node] = round(times.get(node, 0.0) + ms, 1)
        self.account.unsaved = self.total() if in_loop else NO_USAGE
        return self.total()

    def fail_visit(self) -> Usage:
        """Keep the turn's cost, which the state will not show, and return it."""
        self.account.unsaved = self.total()
        return self.total()


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
