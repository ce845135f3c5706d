"""CloudEvents 1.0 on Kafka: requests in events of both content modes, and replies that are events too."""
