"""Start the parts of a whole tokenbatch on one machine: Kafka, a model server, an aggregator."""
