"""The brokers of the tests of Kafka."""

from tests.integration.kafka.conftest import fragile, own_broker, shared

__all__ = ["fragile", "own_broker", "shared"]
