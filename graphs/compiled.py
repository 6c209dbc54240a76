"""The compiled main graph: LangGraph's, with hopgate's own schema of settings."""

from typing import Any

from langgraph.graph.state import CompiledStateGraph
from pydantic import TypeAdapter

from hopgate.nodes.context import Context
from hopgate.nodes.state import Input, Output, State


class AdaptiveGraph(CompiledStateGraph[State, Context, Input, Output]):
    """The graph that `build_graph` returns; everything else is LangGraph's.

    Attributes:
        defaults: The settings of a request that gives none.
    """

    def __init__(self, *, defaults: Context, **parts: Any) -> None:
        """Take LangGraph's parts; `with_config` makes copies of a graph this way."""
        super().__init__(**parts)
        self.defaults = defaults

    @classmethod
    def of(
        cls, compiled: CompiledStateGraph[State, Context, Input, Output], defaults: Context
    ) -> "AdaptiveGraph":
        """Return a compiled graph as an `AdaptiveGraph`."""
        parts = {name: part for name, part in vars(compiled).items() if name != "__orig_class__"}
        return cls(defaults=defaults, **parts)

    def get_context_jsonschema(self) -> dict[str, Any]:
        """Return the schema of the settings, with this graph's own defaults."""
        settings = TypeAdapter(Context)
        schema, defaults = settings.json_schema(), settings.dump_python(self.defaults, mode="json")
        for name, field in schema["properties"].items():
            field["default"] = defaults[name]
        return schema
