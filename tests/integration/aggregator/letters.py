"""Hold a dead letter to the contract: the original record, and exactly the headers that say what became of it."""

from __future__ import annotations

import hashlib
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
    omitted: bool = False,
) -> None:
    """`omitted`: the value was too large for the dead-letter topic."""
    found = headers(record)
    told = {name: value.decode() for name, value in found.items() if name.startswith("dlt-")}
    assert {name: value for name, value in found.items() if name not in told} == dict(sent.headers)
    value = sent.value or b""
    assert (record.key, record.value) == (sent.key, b"" if omitted else value)
    failed = datetime.fromisoformat(told.pop("dlt-first-failure-time"))
    assert abs((datetime.now(UTC) - failed).total_seconds()) < _RECENT_S
    assert says in told.pop("dlt-error-message")
    expected = {
        "dlt-original-topic": written.topic,
        "dlt-original-partition": str(written.partition),
        "dlt-original-offset": str(written.offset),
        "dlt-original-timestamp": str(written.timestamp_ms),
        "dlt-original-consumer-group": group,
        "dlt-error-code": code,
        "dlt-attempts": str(attempts),
    }
    if omitted:
        expected |= {
            "dlt-value-omitted": "true",
            "dlt-value-size": str(len(value)),
            "dlt-value-sha256": hashlib.sha256(value).hexdigest(),
        }
    assert told == expected
