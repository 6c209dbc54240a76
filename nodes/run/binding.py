"""Binds a node to LangGraph: with its resources, within the limits, and with its cost counted."""

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from hopgate.common.faults import for_clients
from hopgate.common.threads import wait_for
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.events import FailedEvent
from hopgate.nodes.run.identity import identity
from hopgate.nodes.run.limits import NO_LIMITS
from hopgate.nodes.run.runtime import NodeRuntime, Resources
from hopgate.nodes.run.spending import KEY, RUN_USAGE, RUN_USER, Spending
from hopgate.nodes.run.state import Update, merge_decision, with_warning

Node = Callable[[Any, NodeRuntime], Coroutine[Any, Any, Update]]


class BoundNode(Runnable[Any, Update]):
    """A node with its resources, which adds a visit's cost to `usage`.

    LangGraph awaits it with `ainvoke`; `invoke` runs it in the background.
    """

    def __init__(
        self,
        node: Node,
        resources: Resources,
        name: str | None = None,
        *,
        first: bool = False,
        in_loop: bool = False,
    ) -> None:
        """Bind a node.

        Args:
            node: A function of state and `NodeRuntime` that returns the channels it changes.
            resources: The parts that the app passed in.
            name: The node's name in the graph and in `usage["ms"]`; None is the function's.
            first: Whether the node starts a turn, so that the state is still the last turn's.
            in_loop: Whether it is the loop's, which has a state of its own.
        """
        self.name = self._name = name or node.__name__
        self._node, self._resources = node, resources
        self._first, self._in_loop = first, in_loop

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:
        """Visit the node and wait for it."""
        return wait_for(self.visit(input, get_runtime(Context), config))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:
        """Visit the node."""
        return await self.visit(input, get_runtime(Context), config)

    async def visit(
        self, state: Any, runtime: Runtime[Context], config: RunnableConfig | None = None
    ) -> Update:
        """Visit the node, and return its update with the turn's cost.

        Raises:
            ValueError: A setting, or a part of the state that a person edited, exceeds the
                operator's limits, or these name the authenticated user and there is none.
            RateReached: The user may not have another run now.
        """
        started = time.perf_counter()
        visited = self._runtime(state, runtime, config)
        user, rates = _user(runtime), self._resources.limits.rates
        begins = _spending_of(config).began is None
        spending = visited.spending = self._enter(visited, state, config)
        before = spending.tokens
        try:
            if begins:
                await rates.enter(user)
            update = await visited.in_time(self._name, self._node(state, visited))
        except BaseException as error:
            error.usage = usage = spending.fail_visit()  # type: ignore[attr-defined]
            error.run_usage = spending.usage  # type: ignore[attr-defined]
            error.run_user = user  # type: ignore[attr-defined]
            if isinstance(error, Exception) and usage["llm_calls"] + usage["retrieval_steps"]:
                visited.send(FailedEvent(event="failed", node=self._name, usage=usage))
            if isinstance(error, Exception) and (told := for_clients(error)) is not error:
                raise told from error
            raise
        finally:
            await rates.spend(user, spending.tokens - before)
        if visited.notes:
            decision = merge_decision(state["decision"], update.get("decision", {}))
            noted = with_warning({"decision": decision}, *visited.notes)
            update["decision"] = update.get("decision", {}) | noted
        ms = (time.perf_counter() - started) * 1000
        usage = spending.end_visit(self._name, ms, in_loop=self._in_loop)
        if not self._first:
            return {**update, "usage": usage, RUN_USAGE: spending.usage, RUN_USER: user}
        run = _spending_of(config)  # not before: a start that fails opens no turn
        self._resources.accounts.open(_thread(config, run), spending.account)
        run.begin_turn(spending)
        return {**update, "usage": Overwrite(usage), RUN_USAGE: run.usage, RUN_USER: user}

    def _runtime(
        self, state: Any, runtime: Runtime[Context], config: RunnableConfig | None
    ) -> NodeRuntime:
        """Return the visit's runtime, with settings within the limits."""
        limits = self._resources.limits
        context = settings(runtime.context, self._resources.context)
        if not self._first and "standalone" not in state:
            raise ValueError(
                f"there is no turn that {self._name} could continue; ask with `question` or a "
                "message"
            )
        if limits is not NO_LIMITS:
            context = limits.apply(context, _user(runtime))
            if not self._first:
                limits.check_state(state)
        visited = NodeRuntime(context, self._resources, runtime.stream_writer)
        if self._first:
            visited.misplaced = _misplaced(runtime.context, config)
        return visited

    def _enter(self, visited: NodeRuntime, state: Any, config: RunnableConfig | None) -> Spending:
        """Return the run's spending, which its first node opens; for `start` one of its own."""
        spending = Spending() if self._first else _spending_of(config)
        if self._first:
            spending.enter(spending.account, {}, visited.now())
        elif spending.began is None:
            account = self._resources.accounts.of(_thread(config, spending), state)
            spending.enter(account, state, visited.now())
        return spending


def settings(given: object, defaults: Context | None) -> Context:
    """Return the settings of a request.

    LangGraph passes a parent graph's context on to the graphs inside it. One that is not a
    `Context` has settings of another graph, so it is ignored.

    Args:
        given: The run's context.
        defaults: The graph's own, for settings that the request leaves out.
    """
    if not isinstance(given, Context):
        return defaults or Context()
    return given.over(defaults) if defaults else given


def _spending_of(config: RunnableConfig | None) -> Spending:
    given = _configurable(config).get(KEY)
    return given if isinstance(given, Spending) else Spending()


def _configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    return (config or {}).get("configurable", {})


def _thread(config: RunnableConfig | None, run: Spending) -> str | None:
    thread: str | None = _configurable(config).get("thread_id")
    return thread if thread is None else f"{thread} {run.place}"


def _user(runtime: Runtime[Context]) -> str | None:
    """Return the authenticated user's name.

    LangGraph takes it from the object that the server puts into the run's config, never from
    JSON that a request brings.
    """
    info = runtime.server_info
    return identity(info.user) if info else None


def _misplaced(given: object, config: RunnableConfig | None) -> tuple[str, ...]:
    """Return the settings that are only in `configurable`; a server copies it to the context."""
    names = Context.model_fields.keys() & _configurable(config).keys()
    return tuple(sorted(names - getattr(given, "model_fields_set", frozenset())))
