"""The common part of the sources whose callers wait for the answer: gRPC and HTTP."""
