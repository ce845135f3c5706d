"""The gRPC port of a process: its server, and the services of libraries beside its own."""
