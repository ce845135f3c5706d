"""With which certificates the metrics API is served, and how the API server is known by its own."""

from __future__ import annotations

import base64
import json
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from aggregator.errors import StartError
from k8s.api import Kubernetes, KubernetesError, Object
from k8s.scaler.external_metrics.certificates import Certificates, is_due, make, utc_now
from k8s.scaler.settings import ApiSettings

_LOG = logging.getLogger(__name__)
_AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
_CONFLICT = 409
_KEYS = {"ca_bundle": "ca.crt", "ca_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key (PEM), who signed it, and who may ask: whom `client_ca` signed as one of the names.

    No names: whoever it signed.
    """

    certificate: bytes
    key: bytes
    ca_bundle: bytes
    client_ca: str
    client_names: Sequence[str]

    def server_context(self) -> ssl.SSLContext:
        """TLS that asks for a client certificate and verifies it; probes come without. Raises ssl.SSLError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        with TemporaryDirectory() as folder:  # in memory: /tmp is, in the chart; the library takes files only
            cert_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
            cert_file.write_bytes(self.certificate)
            key_file.touch(mode=0o600)
            key_file.write_bytes(self.key)
            context.load_cert_chain(cert_file, key_file)
        context.load_verify_locations(cadata=self.client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context


async def current_identity(settings: ApiSettings, namespace: str, kubernetes: Kubernetes | None) -> Identity:
    """As the settings have it, and else the cluster. Raises KubernetesError, OSError, StartError without a cluster."""
    if settings.client_ca_file is not None:
        client_ca, client_names = settings.client_ca_file.read_text(), settings.client_names
    else:
        client_ca, client_names = await _front_proxy(_needed(kubernetes))
    if settings.cert_file is not None and settings.key_file is not None:
        authority = settings.ca_file
        bundle = authority.read_bytes() if authority is not None and authority.exists() else b""
        return Identity(
            settings.cert_file.read_bytes(), settings.key_file.read_bytes(), bundle, client_ca, client_names
        )
    host = f"{settings.service}.{namespace}.svc"
    shared = SharedCertificate(
        _needed(kubernetes),
        namespace=namespace,
        secret=settings.secret,
        names=[host, f"{host}.cluster.local"],
    )
    found = await shared.current()
    return Identity(found.certificate, found.key, found.ca_bundle, client_ca, client_names)


class SharedCertificate:
    """One certificate of all replicas of the scaler, in a Secret.

    Whoever finds it missing or due makes it, and who loses that race takes the other's.
    """

    def __init__(
        self,
        kubernetes: Kubernetes,
        *,
        namespace: str,
        secret: str,
        names: Sequence[str],
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._kubernetes = kubernetes
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
        self._names = tuple(names)
        self._clock = clock

    async def current(self) -> Certificates:
        """The certificates to serve now. Raises KubernetesError."""
        while True:
            secret = await self._kubernetes.get(self._path)
            found = _read(secret)
            if found is not None and not is_due(found, self._names, self._clock()):
                break
            found = make(self._names, self._clock(), found)
            try:
                await self._kubernetes.update(self._path, secret | {"data": _data(found)})
            except KubernetesError as error:
                if error.status != _CONFLICT:
                    raise
                continue
            _LOG.info("made a serving certificate", extra={"names": self._names})
            break
        return found


def _read(secret: Object) -> Certificates | None:
    data = secret.get("data") or {}
    if not all(data.get(key) for key in _KEYS.values()):
        return None
    try:
        return Certificates(**{field: base64.b64decode(data[key]) for field, key in _KEYS.items()})
    except ValueError:
        return None


def _data(certificates: Certificates) -> dict[str, str]:
    return {key: base64.b64encode(getattr(certificates, field)).decode() for field, key in _KEYS.items()}


def _needed(kubernetes: Kubernetes | None) -> Kubernetes:
    if kubernetes is None:
        raise StartError("outside of Kubernetes api.cert_file, api.key_file and api.client_ca_file must be set")
    return kubernetes


async def _front_proxy(kubernetes: Kubernetes) -> tuple[str, tuple[str, ...]]:
    """Who signs the API server's client certificate (PEM), and which names it may carry. Raises KubernetesError."""
    data = (await kubernetes.get(_AUTHENTICATION)).get("data") or {}
    client_ca = data.get("requestheader-client-ca-file", "")
    if not client_ca:
        raise KubernetesError(0, "the cluster names no authority for its front proxy: is the aggregation layer on?")
    try:
        names = json.loads(data.get("requestheader-allowed-names") or "[]")
    except ValueError as error:
        raise KubernetesError(0, f"requestheader-allowed-names cannot be read: {error}") from error
    return client_ca, tuple(str(name) for name in names)
