"""Serve `EmbedStream` of `embedding.v1.Embeddings`."""

from __future__ import annotations

import asyncio
from operator import itemgetter

import grpc
from typing_extensions import override

from aggregator.admission.bounds import Address
from aggregator.admission.ledger import Holders
from aggregator.observability.calls import CallTelemetry
from aggregator.observability.metrics import Limit
from aggregator.request.request import Failure
from aggregator.sources.grpc.reading import Context, GrpcCalls, RpcService, answering
from aggregator.sources.grpc.service import EmbeddingsService
from aggregator.wings.stream.open_stream import OVER, OpenStream
from k8s.pod.grpc.server import Handlers

_AGE_SHARE = 0.9
"""Share of the grace that gRPC gives the calls of an old connection: a stream ends before it is cut off."""
_SILENT_S = 5.0  # of a stream, before another may have its place


class StreamService(RpcService):
    """The streaming method of the public service."""

    name = EmbeddingsService.name

    def __init__(self, calls: GrpcCalls, telemetry: CallTelemetry) -> None:
        super().__init__(calls, telemetry)
        self._streams: dict[OpenStream, Holders] = {}
        self._streams_over = False

    async def embed_stream(self, context: Context) -> Failure | None:
        """EmbedStream: many requests, answered as they complete; reading pauses while the window is full."""
        if self._streams_over:
            return OVER
        calls, limits = self._calls, self._calls.load.limits
        identity = calls.identify(context)
        self._end_silent_stream()
        # At the limit the silent ones of an address make way, so its share would only refuse those that speak.
        holders = tuple(holder for holder in identity.holders if not isinstance(holder, Address))
        calls.load.open_stream(holders)
        stream = OpenStream(calls, identity, calls.deadline_s(context), limits.stream_window)
        self._streams[stream] = holders
        age = asyncio.get_running_loop().call_later(_AGE_SHARE * limits.connection_grace_s, stream.end)
        try:
            await stream.serve(context)
        finally:
            age.cancel()
            self._close(stream)
        return OVER if stream.cut_short else None

    def _end_silent_stream(self) -> None:
        """At the limit of open streams, end the one silent for longest: its client can open another."""
        load = self._calls.load
        if self._streams and not load.streams.has_room(1):
            silent_s, stream = max(((each.silent_s, each) for each in self._streams), key=itemgetter(0))
            if silent_s >= _SILENT_S:
                load.refusal(Limit.SILENT)
                stream.end()
                self._close(stream)

    def _close(self, stream: OpenStream) -> None:
        holders = self._streams.pop(stream, None)
        if holders is not None:
            self._calls.load.close_stream(holders)

    @override
    def end_streams(self) -> None:
        self._streams_over = True
        for stream in self._streams:
            stream.end()

    @override
    def handlers(self) -> Handlers:
        answers = answering(self.embed_stream, self.method("EmbedStream"))
        return {"EmbedStream": grpc.stream_stream_rpc_method_handler(answers)}
