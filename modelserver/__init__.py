"""Serve one embedding model over gRPC: whole batches of token ids in, pooled vectors out, one engine step at a time."""

import os

# gRPC's core writes plain lines on standard error, as many as a caller likes; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
