"""Generated from aggregator's .proto files."""
