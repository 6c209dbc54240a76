"""hopgate as a tool of a ReAct agent: the agent asks, hopgate decides how deep to look.

    pip install '.[cpu]' 'langchain>=1,<2'
    export OPENAI_API_KEY=…      # or OPENAI_BASE_URL, and OPENAI_MODEL, for another server
    python examples/react_agent.py "Is Skerrane Light older than the Eiffel Tower?"

The agent's model must call tools, which the embedded one cannot.
"""

import asyncio
import os
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from hopgate import Context, graph

SETTINGS = Context(alpha=0.6, gate="always")  # the agent has decided to look up


@tool
async def look_up(question: str) -> dict[str, Any]:
    """Look up one question of fact in the collection.

    Ask a whole question that can be understood alone, one at a time.
    """
    try:
        result = await graph.ainvoke({"question": question}, context=SETTINGS)
    except (ValueError, RuntimeError) as error:
        return {"error": str(error)}  # the agent may ask otherwise, or say so
    sources = [{"title": each["title"], "quote": each["quote"]} for each in result["citations"]]
    return {"answer": result["answer"], "sources": sources}


def build_agent(checkpointer: Any = None) -> Any:
    """Compile the agent; with a checkpointer it keeps conversations."""
    model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL") or "gpt-4o-mini", temperature=0)
    prompt = "Look up what you are not sure of with look_up, and name the sources."
    return create_agent(model, [look_up], system_prompt=prompt, checkpointer=checkpointer)


async def main(question: str) -> None:
    """Ask the agent, and print every step."""
    asked = {"messages": [{"role": "user", "content": question}]}
    async for state in build_agent().astream(asked, stream_mode="values"):
        state["messages"][-1].pretty_print()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
