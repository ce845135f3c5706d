"""Benchmarks of embeddings and generations in the same engine steps, beside steps that alternate and split servers."""
