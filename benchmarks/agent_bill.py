"""The bill of a capable endpoint: hopgate at default settings, and an agent with a search tool.

    python benchmarks/agent_bill.py --questions fresh.jsonl --index index [--profile gpt-4o-mini]

Both ask the same SCRIPTED model, which asks for a search for every question but common knowledge,
and answers in one sentence. Calls are counted and tokens estimated (four characters each, tools
included); whether answers are right is not measured.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool

from hopgate import Context, build_graph
from hopgate.nodes.prompts.templates import MAY_SEARCH, SEARCH, VANILLA, paragraphs
from hopgate.retrievers.sources import open_source

TOP_K = 5
ANSWER = "That is told in the passage which was found, as far as it says anything about it [1]."
SYSTEM = "You answer questions. Search the collection for facts that you do not know for certain."


class Scripted(BaseChatModel):
    """A model that follows a script, and counts its calls and tokens."""

    needed: set[str]
    bill: Any  # a dict, which pydantic must not copy
    tools: Sequence[dict[str, Any]] = ()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "Scripted":  # type: ignore[override]
        """Return the model with these tools."""
        return self.model_copy(update={"tools": [convert_to_openai_tool(each) for each in tools]})

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        text = "\n".join(each.text for each in messages)
        needs = any(question in text for question in self.needed)
        reply = AIMessage(ANSWER)
        if VANILLA in text:
            reply = AIMessage("[Yes]" if needs else "[No]")
        elif MAY_SEARCH in text and needs:
            reply = AIMessage(SEARCH)
        elif self.tools and needs and messages[-1].type == "human":
            call = {"name": "search", "args": {"query": messages[-1].text}, "id": "1"}
            reply = AIMessage("", tool_calls=[call])
        sent = text + (json.dumps(list(self.tools)) if self.tools else "")
        said = reply.text + json.dumps(reply.tool_calls) * bool(reply.tool_calls)
        self.bill["calls"] += 1
        self.bill["tokens"] += (len(sent) + len(said)) / 4
        return ChatResult(generations=[ChatGeneration(message=reply)])


def search_tool(index: str, bill: dict[str, float]) -> BaseTool:
    retriever = open_source(index)

    @tool
    def search(query: str) -> str:
        """Search the collection for passages about a question."""
        bill["searches"] += 1
        return paragraphs("inline", retriever.search([query], TOP_K)[0])

    return search


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--index", required=True)
    parser.add_argument("--profile", default="gpt-4o-mini")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.questions.read_text("utf-8").splitlines()]
    needed = {row["question"] for row in rows if row["dataset"] != "common"}
    print(f"{len(rows)} questions, {len(needed)} of which the model wants to search for\n")
    print("| | calls | searches | tokens |\n|---|---|---|---|")
    ways: dict[str, dict[str, Any]] = {
        "hopgate, default": {},
        "hopgate, gate reply": {"gate": "reply"},
        "hopgate, gate ta-are (default of before)": {"gate": "ta-are", "alpha": 0.7},
        "always single": {"strategy": "single"},
        "never": {"strategy": "none"},
    }
    for name, settings in ways.items():
        bill = dict.fromkeys(("calls", "searches", "tokens"), 0.0)
        graph = build_graph(model=Scripted(needed=needed, bill=bill))
        context = Context(index=options.index, profile=options.profile, **settings)
        for row in rows:
            result = await graph.ainvoke({"question": row["question"]}, context=context)
            bill["searches"] += result["usage"]["retrieval_steps"]
        show(name, bill, len(rows))
    bill = dict.fromkeys(("calls", "searches", "tokens"), 0.0)
    model = Scripted(needed=needed, bill=bill)
    agent: Any = create_agent(model, [search_tool(options.index, bill)], system_prompt=SYSTEM)
    for row in rows:
        await agent.ainvoke({"messages": [{"role": "user", "content": row["question"]}]})
    show("agent with a search tool", bill, len(rows))


def show(name: str, bill: dict[str, float], count: int) -> None:
    calls, searches, tokens = (bill[each] / count for each in ("calls", "searches", "tokens"))
    print(f"| {name} | {calls:.2f} | {searches:.2f} | {tokens:.0f} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
