"""Generated from token_vectors's .proto files."""
