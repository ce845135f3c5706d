"""An aggregator whose gRPC calls do not wait: only those that come during an admission share the next one."""

from __future__ import annotations

import sys
from unittest.mock import patch

from typing_extensions import override

from aggregator.__main__ import main
from aggregator.request import Request
from aggregator.sources.grpc.call_batcher import CallBatcher


class WithoutWaiting(CallBatcher):
    """Calls are admitted at once, whether or not a model server could take them."""

    @override
    def add(self, call: Request) -> None:
        super().add(call)
        self.receive_now()


if __name__ == "__main__":
    with patch("aggregator.sources.grpc.source.CallBatcher", WithoutWaiting):
        sys.exit(main([]))
