"""Serve TLS from certificate files, and take up new ones at the next handshake after they were changed."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path

import grpc

from aggregator.adapters.watched_files import WatchedFiles
from aggregator.errors import StartError
from aggregator.settings_grpc import TlsSettings


def server_credentials(settings: TlsSettings, check_every_s: float = 1.0) -> grpc.ServerCredentials | None:
    """Credentials that follow their files; None without TLS. Raises StartError."""
    if settings.cert_file is None and settings.key_file is None:
        if settings.client_ca_file is not None:
            raise StartError("grpc.tls.client_ca_file needs grpc.tls.cert_file and grpc.tls.key_file beside it")
        return None
    if settings.cert_file is None or settings.key_file is None:
        raise StartError("grpc.tls.cert_file and grpc.tls.key_file belong together: one of them is not set")
    cert, key, client_ca = settings.cert_file, settings.key_file, settings.client_ca_file
    paths = [cert, key] if client_ca is None else [cert, key, client_ca]
    try:
        files = WatchedFiles(paths, partial(_read, cert, key, client_ca), check_every_s=check_every_s)
    except (OSError, ValueError) as error:
        raise StartError(f"grpc.tls: {error}") from None
    # gRPC asks before every handshake; the configuration it is given last stays in force.
    return grpc.dynamic_ssl_server_credentials(
        files.get(), files.get, require_client_authentication=client_ca is not None
    )


def _read(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCertificateConfiguration:
    """Raises OSError, or ValueError for a key that is not the certificate's, as in the middle of a rotation."""
    chain, secret = cert.read_bytes(), key.read_bytes()
    ca = client_ca.read_bytes() if client_ca is not None else None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        raise ValueError(f"{cert} and {key} are no certificate with its key: {error.reason or error}") from None
    return grpc.ssl_server_certificate_configuration([(secret, chain)], ca)


def _no_password() -> str:
    raise ValueError("the key file is encrypted: give one that is not")
