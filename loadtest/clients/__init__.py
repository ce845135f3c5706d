"""Clients of an aggregator, over Kafka and over gRPC, that account for every query they send."""
