"""An aggregator that is broken on purpose: it commits what it has read, whether answered or not."""

from __future__ import annotations

import sys
from typing import Any

from aggregator.__main__ import main
from aggregator.core.watermark import Lease, Watermark

_really_deliver = Watermark.deliver


def deliver(self: Watermark, offset: int, record: Any) -> Lease:
    """In place of leasing a record until it is answered."""
    lease = _really_deliver(self, offset, record)
    self.settle(lease)
    return lease


if __name__ == "__main__":
    Watermark.deliver = deliver  # type: ignore[method-assign]
    sys.exit(main())
