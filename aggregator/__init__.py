"""Group queries by token count and dispatch each batch to a model server."""

import os

# gRPC's core writes plain lines on standard error, as many as a caller likes; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
