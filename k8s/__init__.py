"""The ground of every process: what each pod has, and the Kubernetes API."""

import os

# gRPC's core writes plain lines to standard error, and callers can cause many; it reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
