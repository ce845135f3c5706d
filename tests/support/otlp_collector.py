"""A collector of OpenTelemetry's spans on a real port, which keeps what processes export."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc
from typing_extensions import override

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")


@dataclass(frozen=True, slots=True)
class ExportedSpan:
    """One span; ids are hexadecimal, `failed` is its status, `links` the traces that it links."""

    service: str
    name: str
    kind: str
    trace: str
    failed: bool
    message: str
    attributes: Mapping[str, Any]
    links: tuple[str, ...] = ()


class Collector(pb_grpc.TraceServiceServicer):
    """Keeps the spans of every process that exports here."""

    def __init__(self) -> None:
        self._spans: list[ExportedSpan] = []
        self._lock = threading.Lock()
        self.endpoint = ""

    @property
    def spans(self) -> list[ExportedSpan]:
        with self._lock:
            return [*self._spans]

    @override
    def Export(self, request: Any, context: Any) -> Any:
        del context
        with self._lock:
            self._spans.extend(span for group in request.resource_spans for span in _spans(group))
        return pb.ExportTraceServiceResponse()


@contextmanager
def collecting() -> Generator[Collector]:
    """A collector until the block ends."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    pb_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _spans(group: Any) -> Iterator[ExportedSpan]:
    service = _attributes(group.resource.attributes)["service.name"]
    for scope in group.scope_spans:
        for span in scope.spans:
            yield ExportedSpan(
                service,
                span.name,
                KINDS[span.kind],
                span.trace_id.hex(),
                span.status.code == span.status.STATUS_CODE_ERROR,
                span.status.message,
                _attributes(span.attributes),
                tuple(link.trace_id.hex() for link in span.links),
            )


def _attributes(listed: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in listed}
