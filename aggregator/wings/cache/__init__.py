"""Rows that were computed before answer equal inputs: `batching.cache_bytes`, off by default."""
