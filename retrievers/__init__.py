"""Where passages come from: encoders, the FAISS index, BM25, document loaders, outside stores.

Everything that finds passages is a `Retriever`: it has `search(queries, k)` and returns plain
hits. Import what you need from its module:

- `base`: `Retriever`, `Passage`, `Hit`, `make_passage`. `langchain`: `LangChainRetriever`.
- `sources`: `open_source` opens whatever a request names; `sample_path`.
- `index`: `load_index` opens an index on disk, once per process; `check_index`.
- `building`: `build_index`, `build_from_passages`, `add`, `add_passages`, `sync`, `delete`,
  `compact`. `watching`: `watch`.
- `documents.reading`: `load_documents` turns files into passages.
- `encoders`: `load_encoder`. `rerank`: `load_reranker`. `push`: `push`.
- `manifest`: `info`. `verifying`: `verify`.

Importing this package loads none of them.
"""
