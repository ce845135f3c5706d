"""One server span per batch, in the trace of its caller, if traces are exported."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import grpc
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from k8s.pod.rpc_spans import error_of, rpc_attributes
from k8s.pod.telemetry import Telemetry
from modelserver.errors import ModelServerError
from modelserver.service.servicer import BatchSpan, Metadata

_METHOD = "modelserver.v1.ModelServer/EmbedBatch"


def batch_spans(tracer: Tracer) -> BatchSpan:
    """Spans by the conventions for RPC; the parent is in the metadata's traceparent."""

    @contextmanager
    def span(metadata: Metadata | None) -> Generator[None]:
        carrier = {name: value for name, value in metadata or () if isinstance(value, str)}
        code = grpc.StatusCode.OK
        opened = tracer.start_span(_METHOD, extract(carrier), SpanKind.SERVER, rpc_attributes(_METHOD))
        try:
            yield
        except ModelServerError as error:  # its message could quote an input: only its code is told
            code = error.code
            raise
        except asyncio.CancelledError:
            code = grpc.StatusCode.CANCELLED
            raise
        except BaseException:
            code = grpc.StatusCode.UNKNOWN
            raise
        finally:
            opened.set_attribute("rpc.response.status_code", code.name)
            if error_type := error_of(code.name):
                opened.set_attribute("error.type", error_type)
                opened.set_status(Status(StatusCode.ERROR))
            opened.end()

    return span


def open_spans(telemetry: Telemetry) -> BatchSpan | None:
    """The spans of this process's batches; None where no collector is configured."""
    return batch_spans(telemetry.tracer) if telemetry.traces else None
