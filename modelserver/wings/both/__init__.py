"""Embeddings in the steps of generation: `model.task` both, and auto where a model's files say that it does both."""
