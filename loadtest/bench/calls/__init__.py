"""Benchmarks of calls: beside what users run today, bare servers and documents, and watched on the live page."""
