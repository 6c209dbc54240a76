"""Binds a node to LangGraph: with its resources, within the limits, and with its cost counted."""

from collections.abc import Callable, Coroutine
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import Overwrite

from hopgate.common.faults import for_clients
from hopgate.common.threads import wait_for
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.events import FailedEvent
from hopgate.nodes.run.identity import identity
from hopgate.nodes.run.runtime import NodeRuntime, Resources
from hopgate.nodes.run.spending import RUN, RUN_USER, VISIT_USAGE, tokens_of
from hopgate.nodes.run.state import NO_USAGE, Update, merge_decision, with_warning

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
    ) -> None:
        """Bind a node.

        Args:
            node: A function of state and `NodeRuntime` that returns the channels it changes.
            resources: The parts that the app passed in.
            name: The node's name in the graph and in `usage["ms"]`; None is the function's.
            first: Whether the node starts a turn, so that the state is still the last turn's.
        """
        self.name = self._name = name or node.__name__
        self._node, self._resources = node, resources
        self._first = first

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
            ValueError: A setting exceeds the operator's limits, or these name the authenticated
                user and there is none.
            RateReached: The user may not have another run now.
        """
        visited = self._runtime(state, runtime)
        user, rates = _user(runtime), self._resources.limits.rates
        try:
            if _begins(config):
                await rates.enter(user)
            update = await visited.in_time(self._name, self._node(state, visited))
        except BaseException as error:
            error.usage = usage = visited.total()  # type: ignore[attr-defined]
            error.visit_usage = visited.usage  # type: ignore[attr-defined]
            error.run_user = user  # type: ignore[attr-defined]
            if isinstance(error, Exception) and usage["llm_calls"] + usage["retrieval_steps"]:
                visited.send(FailedEvent(event="failed", node=self._name, usage=usage))
            if isinstance(error, Exception) and (told := for_clients(error)) is not error:
                raise told from error
            raise
        finally:
            await rates.spend(user, tokens_of(visited.usage))
        if visited.notes:
            decision = merge_decision(state["decision"], update.get("decision", {}))
            noted = with_warning({"decision": decision}, *visited.notes)
            update["decision"] = update.get("decision", {}) | noted
        visited.usage["ms"][self._name] = visited.ms()
        cost = Overwrite(visited.total()) if self._first else visited.total()
        return {**update, "usage": cost, VISIT_USAGE: visited.usage, RUN_USER: user}

    def _runtime(self, state: Any, runtime: Runtime[Context]) -> NodeRuntime:
        """Return the visit's runtime, with settings within the limits."""
        if not self._first and "standalone" not in state:
            raise ValueError(
                f"there is no turn that {self._name} could continue; ask with `question` or a "
                "message"
            )
        context = settings(runtime.context, self._resources.context)
        context = self._resources.limits.apply(context, _user(runtime))
        visited = NodeRuntime(context, self._resources, runtime.stream_writer)
        if not self._first:
            visited.before = {**NO_USAGE, **(state.get("usage") or {})}
        return visited


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


def _user(runtime: Runtime[Context]) -> str | None:
    """Return the authenticated user's name.

    LangGraph takes it from the object that the server puts into the run's config, never from
    JSON that a request brings.
    """
    info = runtime.server_info
    return identity(info.user) if info else None


def _begins(config: RunnableConfig | None) -> bool:
    """Return whether this is the run's first visit to a node, and note that it was."""
    run = (config or {}).get("configurable", {}).get(RUN)
    if not isinstance(run, list) or run:
        return False
    run.append(True)
    return True
