"""Benchmarks of calls: beside what users run today, bare servers and a backlog, and watched on the live page."""
