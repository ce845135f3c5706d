"""An authority for tests: client and server certificates as files."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


class CertificateAuthority:
    """Signs what it is asked to."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._builder(self._subject, self._key).add_extension(constraints, critical=True)
        self._certificate = certificate.sign(self._key, hashes.SHA256())
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def issue(self, common_name: str) -> tuple[Path, Path]:
        """A certificate of that name and its key, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(common_name), key)
        alternative = x509.SubjectAlternativeName([x509.DNSName(common_name)])
        certificate = builder.add_extension(alternative, critical=False).sign(self._key, hashes.SHA256())
        cert_file, key_file = (self._folder / f"{common_name}.{kind}" for kind in ("crt", "key"))
        cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert_file, key_file

    def client(self, trusted: str, common_name: str | None) -> ssl.SSLContext:
        """A client that trusts an authority (PEM), with a certificate of that name or none."""
        context = ssl.create_default_context(cadata=trusted)
        if common_name is not None:
            context.load_cert_chain(*self.issue(common_name))
        return context

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
        )
