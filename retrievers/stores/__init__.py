"""Outside stores: collections of Milvus, Qdrant and PostgreSQL."""
