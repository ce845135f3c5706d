"""Benchmarks of generation: 64 streams beside vLLM's own server, and thousands of texts that wait."""
