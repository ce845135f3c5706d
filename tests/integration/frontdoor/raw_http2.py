"""Frames of HTTP/2 as no gRPC library would send them."""

from __future__ import annotations

from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, CONTINUATION = 1, 4, 9
END_HEADERS = 4


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """One frame."""
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + content


def header(name: bytes, value: bytes) -> bytes:
    """A header of HPACK, spelled out; both at most 126 bytes long."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call(stream: int, method: bytes, metadata: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """The headers of a call, without its message."""
    told = [(b":path", method), (b":authority", b"here"), (b"te", b"trailers"), (b"content-type", b"application/grpc")]
    content = b"\x83\x86" + b"".join(header(name, value) for name, value in (*told, *metadata))  # POST, http
    return frame(HEADERS, END_HEADERS, stream, content)
