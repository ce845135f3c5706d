"""The gRPC service: batches in, vectors out, and what is served."""
