"""The certificate of the metrics API, and how it recognises the API server by the API server's certificate."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from k8s.api import Kubernetes, KubernetesError
from k8s.scaler.external_metrics.certificates import Certificate, serving_certificate

_AUTHENTICATION = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"


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
