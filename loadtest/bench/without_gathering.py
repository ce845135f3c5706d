"""An aggregator whose gRPC calls do not wait: only those that come during an admission share the next one."""

from __future__ import annotations

import sys
from unittest.mock import patch

from typing_extensions import override

from aggregator import pipeline
from aggregator.__main__ import main
from aggregator.admission.call_batcher import Gathering
from aggregator.request import Request


class WithoutWaiting(Gathering):
    """Calls are admitted at once, whether or not a model server could take them."""

    @override
    def add(self, call: Request) -> None:
        self._calls.append(call)
        self._due.set()


if __name__ == "__main__":
    with patch.object(pipeline, "Gathering", WithoutWaiting):
        sys.exit(main([]))
