"""Serve one embedding model over gRPC: whole batches of token ids in, pooled vectors out, one engine step at a time."""
