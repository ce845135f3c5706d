"""Make the certificate authority and the serving certificate of the metrics API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 90.0
"""Validity of the serving certificate."""
_CA_DAYS = 3650.0
_CA_RENEWED_DAYS_BEFORE = 365.0
_SKEW = timedelta(minutes=5)
_RENEWED_AT = 2 / 3


@dataclass(frozen=True, slots=True)
class Certificates:
    """What the replicas share, all PEM. `ca_bundle` holds the authority in use first, then the one before it."""

    ca_bundle: bytes
    ca_key: bytes
    certificate: bytes
    key: bytes


def make(names: Sequence[str], now: datetime, old: Certificates | None = None) -> Certificates:
    """New certificates for these DNS names; an authority that is good for another year is kept."""
    authority = _kept_authority(old, now) if old is not None else None
    bundle = old.ca_bundle if authority is not None and old is not None else b""
    if authority is None:
        authority = _authority(now)
        before = b"" if old is None else _first(old.ca_bundle)
        bundle = authority[0].public_bytes(serialization.Encoding.PEM) + before
    ca, ca_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Certificates(bundle, _pem(ca_key), certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def is_due(certificates: Certificates, names: Sequence[str], now: datetime) -> bool:
    """Whether new ones are to be made: two thirds of the validity are over, a name is missing, or they are damaged."""
    try:
        certificate = x509.load_pem_x509_certificate(certificates.certificate)
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        ca = x509.load_pem_x509_certificate(certificates.ca_bundle)
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, x509.ExtensionNotFound, Exception):  # noqa: BLE001 - whatever it is, it is no good
        return True
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    present = set(alternative.get_values_for_type(x509.DNSName))
    return now >= start + (end - start) * _RENEWED_AT or not set(names) <= present or _ca_is_due(ca, now)


def _kept_authority(old: Certificates, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    try:
        ca = x509.load_pem_x509_certificate(old.ca_bundle)
        key = serialization.load_pem_private_key(old.ca_key, None)
    except ValueError:
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or _ca_is_due(ca, now):
        return None
    return (ca, key) if key.public_key() == ca.public_key() else None


def _ca_is_due(ca: x509.Certificate, now: datetime) -> bool:
    return now >= ca.not_valid_after_utc - timedelta(days=_CA_RENEWED_DAYS_BEFORE)


def _authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"tokenbatch scaler {now:%Y-%m-%dT%H:%M:%SZ}")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _first(bundle: bytes) -> bytes:
    """The authority that was in use, to be trusted until nothing that it signed is served any more."""
    try:
        return x509.load_pem_x509_certificate(bundle).public_bytes(serialization.Encoding.PEM)
    except ValueError:
        return b""


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def utc_now() -> datetime:
    """The wall clock, which certificates are judged by."""
    return datetime.now(UTC)
