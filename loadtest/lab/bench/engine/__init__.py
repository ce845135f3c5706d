"""Benchmarks of the engine: by itself, behind the model server, and beside queries one by one."""
