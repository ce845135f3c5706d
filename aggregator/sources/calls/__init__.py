"""What sources have in common whose callers wait for the answer: gRPC and HTTP."""
