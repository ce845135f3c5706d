"""Generated from keda's .proto files."""
