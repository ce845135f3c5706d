"""Know the API server by its client certificate: whom the cluster says that it is signed by, and how it is called."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from k8s.api import Kubernetes, KubernetesError

_PATH = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """Who may ask: `client_ca` (PEM) signs the certificate, which carries one of `names` (empty: any)."""

    client_ca: str
    names: Sequence[str]


async def front_proxy(kubernetes: Kubernetes) -> FrontProxy:
    """As the cluster has it. Raises KubernetesError."""
    data = (await kubernetes.get(_PATH)).get("data") or {}
    client_ca = data.get("requestheader-client-ca-file", "")
    if not client_ca:
        raise KubernetesError(0, "the cluster names no authority for its front proxy: is the aggregation layer on?")
    try:
        names = json.loads(data.get("requestheader-allowed-names") or "[]")
    except ValueError as error:
        raise KubernetesError(0, f"requestheader-allowed-names cannot be read: {error}") from error
    return FrontProxy(client_ca, tuple(str(name) for name in names))


def server_context(certificate: bytes, key: bytes, client_ca: str) -> ssl.SSLContext:
    """TLS that asks for a client certificate and verifies it; probes come without. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with TemporaryDirectory() as folder:  # in memory: /tmp is, in the chart; the library takes files only
        cert_file, key_file = Path(folder, "tls.crt"), Path(folder, "tls.key")
        cert_file.write_bytes(certificate)
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
        context.load_cert_chain(cert_file, key_file)
    context.load_verify_locations(cadata=client_ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
