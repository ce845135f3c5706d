"""An aggregator that is broken on purpose: partitions that it gives back are committed as if all were answered."""

from __future__ import annotations

import sys
from typing import Any

from aggregator.__main__ import main
from aggregator.adapters.kafka_membership import Membership
from aggregator.adapters.kafka_partitions import Assignment


async def settle_all(self: Membership, assignment: Assignment) -> None:
    """In place of waiting for what is out: take it for done."""
    del self
    for partition in assignment.placed:
        watermark: Any = partition.watermark
        for lease in tuple(watermark._leases):  # noqa: SLF001 - nobody sound would want them all
            watermark.settle(lease)


if __name__ == "__main__":
    membership: Any = Membership
    membership._drain = settle_all  # noqa: SLF001 - the step to break
    sys.exit(main())
