"""One span of each batch, exported over OTLP where a collector is configured."""
