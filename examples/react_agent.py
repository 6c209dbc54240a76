"""hopgate as a tool for a ReAct agent: the agent asks, hopgate decides how much to retrieve.

    pip install '.[cpu]' 'langchain>=1,<2'
    export OPENAI_API_KEY=…      # or OPENAI_BASE_URL, and OPENAI_MODEL, for another server
    python examples/react_agent.py "Is Skerrane Light older than the Eiffel Tower?"

The agent's model must support tool calls, which the embedded one does not.
"""

import asyncio
import os
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from hopgate import Context, graph

SETTINGS = Context(alpha=0.6, gate="always")  # the agent has already decided to retrieve


@tool
async def look_up(question: str) -> dict[str, Any]:
    """Look up one factual question in the collection.

    Ask one complete question that can be understood on its own.
    """
    try:
        result = await graph.ainvoke({"question": question}, context=SETTINGS)
    except (ValueError, RuntimeError) as error:
        return {"error": str(error)}  # the agent can rephrase, or report it
    shown = ("number", "title", "quote")
    sources = [{key: each[key] for key in shown if key in each} for each in result["citations"]]
    return {"answer": result["answer"], "sources": sources}


def build_agent(checkpointer: Any = None) -> Any:
    """Build the agent; with a checkpointer it remembers conversations."""
    model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL") or "gpt-4o-mini", temperature=0)
    prompt = "Use look_up for what you are not sure of, and name the sources."
    return create_agent(model, [look_up], system_prompt=prompt, checkpointer=checkpointer)


async def main(question: str) -> None:
    """Ask the agent, and print every step."""
    messages = {"messages": [{"role": "user", "content": question}]}
    async for state in build_agent().astream(messages, stream_mode="values"):
        state["messages"][-1].pretty_print()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
