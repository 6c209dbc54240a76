"""The graph that langgraph.json serves: hopgate with a model, instructions and an index."""

from pathlib import Path

from langchain_core.language_models import BaseChatModel

from hopgate import Context, build_graph
from hopgate.graphs.compiled import AdaptiveGraph

FOLDER = Path(__file__).parent
DOCUMENTS = FOLDER / "documents"
INDEX = FOLDER / "index"  # made of the documents by: hopgate index sync documents --index index

# Every answer follows these. They do not reach the gate and the router.
INSTRUCTIONS = "Answer in one or two short sentences."

# What a request does not set itself; all fields: hopgate ask --help
SETTINGS = Context(
    index=str(INDEX),
    model="auto",  # the model that .env names; without one, the embedded model
    alpha=0.7,  # 0 is cheapest, 1 most reliable
)


def make_graph(model: BaseChatModel | None = None) -> AdaptiveGraph:
    """Build the graph.

    Args:
        model: Any LangChain chat model, such as `ChatAnthropic(model="…")`; by default the one
            that SETTINGS names.
    """
    return build_graph(model=model, instructions=INSTRUCTIONS, context=SETTINGS, name="my-project")


graph = make_graph()
