"""Modules after a model's pooling, as sentence-transformers saves them: Dense, LayerNorm, and Normalize between."""
