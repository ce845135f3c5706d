"""gRPC: `Embed` and `EmbedStream` for internal services."""
