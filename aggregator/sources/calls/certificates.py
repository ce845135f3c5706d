"""Keep what was read from files (certificates, tokens, keys) up to date; the last good value stays in use."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from aggregator.settings.aggregator import TlsSettings
from k8s.pod.errors import StartError
from k8s.pod.files import all_readable

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: with forward secrecy and authenticated encryption, as all of 1.3's; no suites that chain blocks."""
_CHECK_EVERY_S = 1.0  # a rotated Secret appears within a minute anyway
_Stamp = tuple[tuple[int, int, int], ...]


class WatchedFiles(Generic[T]):
    """The result of `read` for some files; they are read again after a change.

    `get` checks the files, at most every second, by time, size and inode, so that it sees switched links
    (Secrets of Kubernetes) as well. While they cannot be read, as in a rotation, the last one stays. Thread-safe.
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files. Raises what `read` raises (OSError, ValueError); later that is only logged."""
        self._paths = tuple(paths)
        self._read = read
        self._lock = Lock()
        self._stamp = _stamp(self._paths)
        self._checked_s = time.monotonic()
        self._value = read()
        self._version = 0

    def get(self) -> T:
        """The present value, or the last good one."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= _CHECK_EVERY_S:
            with self._lock:
                self._checked_s = now_s
                self._refresh()
        return self._value

    @property
    def version(self) -> int:
        """How often they have changed."""
        self.get()
        return self._version

    def _refresh(self) -> None:
        try:
            stamp = _stamp(self._paths)
            if stamp == self._stamp:
                return
            value = self._read()
        except (OSError, ValueError) as error:
            _LOG.error(
                "changed files could not be read, the last good ones stay in use",
                extra={"files": [str(path) for path in self._paths], "error": type(error).__name__},
            )
            return
        self._stamp, self._value = stamp, value
        self._version += 1
        _LOG.info("read changed files", extra={"files": [str(path) for path in self._paths]})


def _stamp(paths: Sequence[Path]) -> _Stamp:
    stats = [path.stat() for path in paths]
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in stats)


def watch_certificates(settings: TlsSettings, read: Callable[[Path, Path, Path | None], T]) -> WatchedFiles[T] | None:
    """The result of `read` for certificate, key and CA of clients; None without TLS. Raises StartError.

    `read` raises OSError or ValueError for files that cannot be used, as in the middle of a rotation.
    """
    if settings.cert_file is None and settings.key_file is None:
        if settings.client_ca_file is not None:
            raise StartError("grpc.tls.client_ca_file needs grpc.tls.cert_file and grpc.tls.key_file beside it")
        return None
    if settings.cert_file is None or settings.key_file is None:
        raise StartError("grpc.tls.cert_file and grpc.tls.key_file belong together: one of them is not set")
    cert, key, client_ca = settings.cert_file, settings.key_file, settings.client_ca_file
    paths = [cert, key] if client_ca is None else [cert, key, client_ca]
    all_readable(settings, "grpc.tls")
    try:
        return WatchedFiles(paths, partial(read, cert, key, client_ca))
    except (OSError, ValueError) as error:
        raise StartError(f"grpc.tls: {error}") from None


def server_context(cert: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Raises OSError, or ValueError for a key that is not the certificate's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(_CIPHERS)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except ssl.SSLError as error:
        raise ValueError(f"{cert} and {key} are not a certificate and its key: {error.reason or error}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key file is encrypted: give one that is not")
