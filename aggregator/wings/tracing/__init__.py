"""Spans of fetches, batches, calls and sends, exported over OTLP where a collector is configured."""
