"""Queries, aggregators and model servers in virtual time, driven by the aggregator's own core."""
