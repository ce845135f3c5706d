"""Embeddings in the steps of generation: servers that do both tasks get batches that fit what decoding leaves."""
