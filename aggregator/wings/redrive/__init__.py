"""`python -m aggregator redrive`: put dead letters back on their topics."""
