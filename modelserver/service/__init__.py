"""The gRPC service: batches in, vectors out, and its description."""
