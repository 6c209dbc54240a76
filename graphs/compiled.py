"""The compiled main graph: LangGraph's, with a schema of its settings and a tool of its own."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateUpdate

from hopgate.nodes.run.context import Context
from hopgate.nodes.run.edits import check_command, check_edit
from hopgate.nodes.run.internals import AllSettings
from hopgate.nodes.run.runtime import Resources
from hopgate.nodes.run.spending import RUN
from hopgate.nodes.run.state import Input, Output, State

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

TOOL_DESCRIPTION = (
    "Answers one factual question from the collection, with the passages that the answer rests on. "
    "Ask a complete question that can be understood on its own."
)


class Page(TypedDict, total=False):
    """What a server's page shows of a project."""

    title: str
    examples: Sequence[str]
    """Questions to begin with."""
    settings: Sequence[str]
    """Names of the fields of `Context` that users may change; the others are not shown."""
    documents: str
    """Web address of the folder of the documents, ending with a slash: their links go there."""


class AdaptiveGraph(CompiledStateGraph[State, Context, Input, Output]):
    """The graph that `build_graph` returns; everything else is LangGraph's.

    Attributes:
        resources: The arguments of `build_graph`.
    """

    def __init__(self, *, resources: Resources, **parts: Any) -> None:
        """Take LangGraph's parts; `with_config` makes copies of a graph this way."""
        super().__init__(**parts)
        self.resources = resources

    @classmethod
    def of(
        cls, compiled: CompiledStateGraph[State, Context, Input, Output], resources: Resources
    ) -> "AdaptiveGraph":
        """Return a compiled graph as an `AdaptiveGraph`."""
        parts = {name: part for name, part in vars(compiled).items() if name != "__orig_class__"}
        return cls(resources=resources, **parts)

    def stream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run the graph; see LangGraph. Every other way to run it comes through here or `astream`.

        Raises:
            ValueError: The input is a command that `check_command` refuses.
        """
        check_command(input)
        return super().stream(input, _begun(config), **options)

    def astream(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run the graph; see `stream`."""
        check_command(input)
        return super().astream(input, _begun(config), **options)

    def bulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Edit the state; see LangGraph. Every other edit comes through here or its async twin.

        Raises:
            ValueError: An edit has the wrong type; names the key.
        """
        self._check_edits(supersteps)
        return super().bulk_update_state(config, supersteps)

    async def abulk_update_state(
        self, config: RunnableConfig, supersteps: Sequence[Sequence[StateUpdate]]
    ) -> RunnableConfig:
        """Edit the state; see `bulk_update_state`."""
        self._check_edits(supersteps)
        return await super().abulk_update_state(config, supersteps)

    def _check_edits(self, supersteps: Sequence[Sequence[StateUpdate]]) -> None:
        for update in chain.from_iterable(supersteps):
            check_edit(update.values)

    @property
    def defaults(self) -> Context:
        """The settings of a request that gives none."""
        return self.resources.context or Context()

    def get_context_jsonschema(self) -> dict[str, Any]:
        """Return the schema of the settings, with this graph's own defaults and its page."""
        schema, defaults = deepcopy(_schema()), self.defaults.model_dump(mode="json")
        for name, field in schema["properties"].items():
            field["default"] = defaults[name]
        page = self.resources.page
        return {**schema, "properties": AllSettings(schema["properties"]), "page": page}

    def as_tool(self, args_schema: Any = None, **options: Any) -> "BaseTool":
        """Return a tool that takes a question and runs with the graph's own settings.

        It returns a dict of `answer`, `citations` and `warnings`. With `args_schema` or
        `arg_types` it is LangChain's own tool, which takes and returns the graph's state.

        Args:
            args_schema: See LangChain's `Runnable.as_tool`.
            options: `name`, by default the graph's, and `description`, which the model is told; or
                more of `Runnable.as_tool`.
        """
        if args_schema is not None or options.get("arg_types") is not None:
            return super().as_tool(args_schema, **options)
        from langchain_core.tools import StructuredTool

        def ask(question: str, config: RunnableConfig) -> dict[str, Any]:
            return _shown(self.invoke({"question": question}, config, context=self.defaults))

        async def aask(question: str, config: RunnableConfig) -> dict[str, Any]:
            return _shown(await self.ainvoke({"question": question}, config, context=self.defaults))

        name = options.get("name") or self.name
        description = options.get("description") or TOOL_DESCRIPTION
        return StructuredTool.from_function(ask, aask, name=name, description=description)


@cache
def _schema() -> dict[str, Any]:
    """Return the schema of the settings; a LangGraph server asks for it at every run."""
    return Context.model_json_schema()


def _begun(config: RunnableConfig | None) -> RunnableConfig:
    """Return the config of a new run, see `RUN`."""
    given = config or RunnableConfig()
    return {**given, "configurable": {**given.get("configurable", {}), RUN: []}}


def _shown(result: dict[str, Any]) -> dict[str, Any]:
    warnings = result["decision"]["warnings"]
    return {"answer": result["answer"], "citations": result["citations"], "warnings": warnings}
