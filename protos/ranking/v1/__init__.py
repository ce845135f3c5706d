"""Generated from v1's .proto files."""
