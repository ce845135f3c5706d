"""Serve one model over gRPC: batches of token ids in and vectors out, or sequences that gain tokens step by step."""

import os

# gRPC's core writes plain lines on standard error, as many as a caller likes; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
