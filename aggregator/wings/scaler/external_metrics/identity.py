"""The certificate of the metrics API, and how it recognises the API server by the API server's certificate.

All replicas of a scaler share the certificate in one Secret.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from k8s.kube.objects import KubernetesError, Object

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

_LOG = logging.getLogger(__name__)
_AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
_DAYS = 90.0  # as certificates of cert-manager last by default
_RENEWED_AT = 2 / 3  # of its time, as cert-manager does: a month is left to mend what fails
_SKEW = timedelta(minutes=5)
_FORBIDDEN, _CONFLICT = 403, 409
_KEYS = {"ca_bundle": "ca.crt", "certificate": "tls.crt", "key": "tls.key"}
_NOTES_OF_CERT_MANAGER = "cert-manager.io/"
_MADE_BY_CERT_MANAGER = f"{_NOTES_OF_CERT_MANAGER}certificate-name"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate, its key, and the certificates that the API server must trust, all PEM."""

    ca_bundle: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """The certificate that is served, and who may ask: clients with a certificate that `client_ca` (PEM) signed.

    It must have one of the names, unless there are none.
    """

    served: Certificate
    client_ca: str
    client_names: Sequence[str]

    def server_context(self) -> ssl.SSLContext:
        """TLS that verifies the client's certificate; probes have none. Raises ssl.SSLError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with TemporaryDirectory() as folder:  # /tmp is memory in the chart; the library takes files only
            cert_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
            cert_file.write_bytes(self.served.certificate)
            key_file.touch(mode=0o600)
            key_file.write_bytes(self.served.key)
            context.load_cert_chain(cert_file, key_file)
        context.load_verify_locations(cadata=self.client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


async def current_identity(kubernetes: Kubernetes, namespace: str, service: str) -> Identity:
    client_ca, client_names = await _front_proxy(kubernetes)
    return Identity(await serving_certificate(kubernetes, namespace, service), client_ca, client_names)


async def _front_proxy(kubernetes: Kubernetes) -> tuple[str, tuple[str, ...]]:
    """The CA of the API server's client certificate (PEM), and the names it may have. Raises KubernetesError."""
    data = (await kubernetes.get(_AUTHENTICATION)).get("data") or {}
    client_ca = data.get("requestheader-client-ca-file", "")
    if not client_ca:
        raise KubernetesError(0, "the cluster names no authority for its front proxy: is the aggregation layer on?")
    try:
        names = json.loads(data.get("requestheader-allowed-names") or "[]")
    except ValueError as error:
        raise KubernetesError(0, f"requestheader-allowed-names cannot be read: {error}") from error
    return client_ca, tuple(str(name) for name in names)


def utc_now() -> datetime:
    """The wall clock, for the validity of certificates."""
    return datetime.now(UTC)


async def serving_certificate(
    kubernetes: Kubernetes, namespace: str, service: str, clock: Callable[[], datetime] = utc_now
) -> Certificate:
    """The certificate in the Secret of a Service.

    If there is none, or it is due, this makes one; if another replica was faster, that one's is returned. A certificate
    of cert-manager is returned as it is until it expires: then cert-manager has left the Secret behind, if the scaler
    may write it. Raises KubernetesError.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets/{service}-tls"
    host = f"{service}.{namespace}.svc"
    names = (host, f"{host}.cluster.local")
    while True:
        secret = await kubernetes.get(path)
        found = _read(secret)
        notes = secret["metadata"].get("annotations") or {}
        theirs = _MADE_BY_CERT_MANAGER in notes
        if theirs and found is None:
            raise KubernetesError(0, f"the Secret {service}-tls does not hold a certificate yet")
        if found is not None and not (has_expired(found, clock()) if theirs else is_due(found, names, clock())):
            return found
        made = make(names, clock(), found)
        data = {key: base64.b64encode(getattr(made, field)).decode() for field, key in _KEYS.items()}
        own_notes = {key: value for key, value in notes.items() if not key.startswith(_NOTES_OF_CERT_MANAGER)}
        metadata = secret["metadata"] | {"annotations": own_notes}
        try:
            await kubernetes.update(path, secret | {"metadata": metadata, "data": data})
        except KubernetesError as error:
            if error.status == _FORBIDDEN and theirs and found is not None:
                return found  # cert-manager is at work, and late
            if error.status != _CONFLICT:
                raise
        else:
            _LOG.info("made a serving certificate", extra={"names": names})
            return made


def make(names: Sequence[str], now: datetime, before: Certificate | None = None) -> Certificate:
    """A self-signed certificate for these DNS names. The one before stays trusted: others may still serve it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    trusted = before.certificate if before is not None and _parsed(before.certificate) is not None else b""
    return Certificate(certificate + trusted, certificate, private)


def is_due(found: Certificate, names: Sequence[str], now: datetime) -> bool:
    """Whether a new one must be made: two thirds of its time are over, it lacks a name, or it is damaged."""
    certificate, issuer = _parsed(found.certificate), _parsed(found.ca_bundle)
    if certificate is None or issuer is None:
        return True
    try:
        certificate.verify_directly_issued_by(issuer)
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return True
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    present = set(alternative.get_values_for_type(x509.DNSName))
    return now >= start + (end - start) * _RENEWED_AT or not set(names) <= present


def has_expired(found: Certificate, now: datetime) -> bool:
    """Whether no client takes it any more."""
    certificate = _parsed(found.certificate)
    return certificate is not None and now >= certificate.not_valid_after_utc


def _parsed(pem: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        return None


def _read(secret: Object) -> Certificate | None:
    data = secret.get("data") or {}
    try:
        present = {"ca.crt": "", **data}  # cert-manager writes none for an issuer that everybody trusts
        return Certificate(**{field: base64.b64decode(present[key]) for field, key in _KEYS.items()})
    except (KeyError, ValueError):
        return None
