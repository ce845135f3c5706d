"""Generated from ranking's .proto files."""
