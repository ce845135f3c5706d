"""Every process that takes part in a batch is killed once; each line is answered once nevertheless.

BATCH_LINES is the number of lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.stack.kafka import KafkaBroker
from loadtest.stack.service import Aggregator
from tests.integration.aggregator.wings.batches.conftest import Office, client_of, lines
from tests.support.processes import aggregators, synthetic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

LINES = int(os.environ.get("BATCH_LINES", "6000"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker to be killed."""
    with KafkaBroker(tmp_path / "kafka") as broker:
        yield broker


def test_every_process_is_killed_and_each_line_is_answered_once(broker: KafkaBroker, tmp_path: Path) -> None:
    told = {
        "BATCHES__STORE": f"file://{tmp_path}/store",
        "BATCHING__MAX_HELD_TOKENS": str(LINES // 3),  # some chunks at a time, so that there is time to kill
        "KAFKA__CLIENT": '{"session_timeout_s": 6}',
    }
    with aggregators(broker, tmp_path, "crashes") as start, synthetic(tmp_path / "model-server.log") as server:
        first = start(server, settings=told)
        others: list[Aggregator] = [start(server, topics=first.topics, settings=told).process for _ in range(1)]
        office = Office(client_of(first.process.http_address))
        batch = office.begin(lines(LINES, bad=lambda each: each % 1000 == 1))

        def done(share: float) -> None:
            office.until(batch, lambda batch: answered(batch) >= share * LINES)

        def answered(batch: object) -> int:
            counts = getattr(batch, "request_counts", None)
            return counts.completed + counts.failed if counts is not None else 0

        for place, victim in enumerate((others[0], server, broker, first.process), start=1):
            done(0.15 * place)
            victim.kill()
            victim.start()
        ended = office.ended(batch, 600.0)
        assert ended.status == "completed"
        output, errors = office.answered(ended)
        assert output == [f"line-{each}" for each in range(LINES) if each % 1000 != 1]
        assert errors == [f"line-{each}" for each in range(LINES) if each % 1000 == 1]
        assert ended.request_counts is not None
        assert (ended.request_counts.completed, ended.request_counts.failed) == (len(output), len(errors))
