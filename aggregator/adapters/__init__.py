"""The edges: Kafka, gRPC, tokenizer and model servers, each behind a port that the pipeline owns."""
