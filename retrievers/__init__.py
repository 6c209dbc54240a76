"""Where passages come from: encoders, the FAISS index, the passage store, document loaders.

Everything that finds passages is a `Retriever`: it has `search(queries, k)` and returns plain
hits. `build_index` turns folders and files into an index on disk, `add` and `delete` change it,
`verify` looks at every byte of it, `load_index` opens one (once per process), and
`LangChainRetriever` wraps any LangChain vector store or retriever.

Importing this package loads neither torch nor faiss; they load with the first encoder or index.
"""

from pathlib import Path

from hopgate.retrievers.base import Hit, LangChainRetriever, Passage, Retriever, make_passage
from hopgate.retrievers.building import (
    BuildReport,
    add,
    add_passages,
    build_from_passages,
    build_index,
    delete,
)
from hopgate.retrievers.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index import Index, check_index, load_index
from hopgate.retrievers.manifest import info
from hopgate.retrievers.verifying import VerifyReport, verify

__all__ = [
    "DEFAULT_ENCODER",
    "BuildReport",
    "Encoder",
    "Hit",
    "Index",
    "LangChainRetriever",
    "Mode",
    "Passage",
    "Retriever",
    "VerifyReport",
    "add",
    "add_passages",
    "build_from_passages",
    "build_index",
    "check_index",
    "delete",
    "info",
    "load_encoder",
    "load_index",
    "make_passage",
    "sample_path",
    "verify",
]


def sample_path() -> Path:
    """Give the folder of the sample index that ships with the package."""
    from hopgate.retrievers.sources import SAMPLE, index_path

    return index_path(SAMPLE)
