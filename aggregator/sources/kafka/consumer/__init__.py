"""Read as a member of the consumer group, and commit."""
