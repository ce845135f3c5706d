"""Generated from embedding's .proto files."""
