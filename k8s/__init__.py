"""What tokenbatch does on Kubernetes: find endpoints, scale model servers, prove an installation."""

import os

# gRPC's core writes plain lines on standard error, as many as a caller likes; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
