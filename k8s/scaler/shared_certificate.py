"""Share one certificate among the replicas of the scaler, by a Secret."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from k8s.api import Kubernetes, KubernetesError, Object
from k8s.scaler.certificates import Certificates, is_due, make, utc_now

_LOG = logging.getLogger(__name__)
_CONFLICT = 409
_KEYS = {"ca_bundle": "ca.crt", "ca_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}


class SharedCertificate:
    """Whoever finds it missing or due makes it, and who loses that race takes the other's."""

    def __init__(
        self,
        kubernetes: Kubernetes,
        *,
        namespace: str,
        secret: str,
        names: Sequence[str],
        days: float,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._kubernetes = kubernetes
        self._path = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
        self._names = tuple(names)
        self._days = days
        self._clock = clock

    async def current(self) -> Certificates:
        """The certificates to serve now. Raises KubernetesError."""
        while True:
            secret = await self._kubernetes.get(self._path)
            found = _read(secret)
            if found is not None and not is_due(found, self._names, self._clock()):
                break
            found = make(self._names, self._days, self._clock(), found)
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
