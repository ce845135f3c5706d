"""Hold a dead letter to the contract: the original record, and exactly the headers that say what became of it."""

from __future__ import annotations

from datetime import UTC, datetime

from aiokafka import ConsumerRecord

from tests.support.kafka_client import Sent, Written, headers

_RECENT_S = 120


def check_dead_letter(
    record: ConsumerRecord[bytes, bytes],
    sent: Sent,
    written: Written,
    group: str,
    *,
    code: str,
    says: str,
    attempts: int = 1,
) -> None:
    found = headers(record)
    told = {name: value.decode() for name, value in found.items() if name.startswith("dlt-")}
    assert {name: value for name, value in found.items() if name not in told} == dict(sent.headers)
    assert (record.key, record.value) == (sent.key, sent.value or b"")
    failed = datetime.fromisoformat(told.pop("dlt-first-failure-time"))
    assert abs((datetime.now(UTC) - failed).total_seconds()) < _RECENT_S
    assert says in told.pop("dlt-error-message")
    assert told == {
        "dlt-original-topic": written.topic,
        "dlt-original-partition": str(written.partition),
        "dlt-original-offset": str(written.offset),
        "dlt-original-timestamp": str(written.timestamp_ms),
        "dlt-original-consumer-group": group,
        "dlt-error-code": code,
        "dlt-attempts": str(attempts),
    }
