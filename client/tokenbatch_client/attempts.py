"""When a failed call is tried again: where the service says that it can help, after its delay, within the deadline."""

from __future__ import annotations

import time

import grpc

from tokenbatch_client.errors import TokenbatchError, of_call

_DELAY_S = 0.1
"""Where the service asks for none: it could not be reached."""


class Attempts:
    """The attempts of one call until its deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.001, self._deadline_s - time.monotonic())

    def delay_s(self, error: grpc.RpcError) -> float:
        """Seconds to wait before the next attempt. Raises the call's error where there is to be none."""
        failed: TokenbatchError = of_call(error)
        delay_s = failed.retry_after_s if failed.retry_after_s is not None else _DELAY_S
        if not failed.retryable or delay_s >= self.left_s:
            raise failed from error
        return delay_s
