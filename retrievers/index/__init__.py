"""The index on disk: vectors in FAISS, words and passages in Tantivy, published atomically."""
