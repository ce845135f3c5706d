"""EmbedStream: many requests on one gRPC call, each answered as it completes."""
