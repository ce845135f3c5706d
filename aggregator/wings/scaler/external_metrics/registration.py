"""Register the external metrics API, of which a cluster has one, unless it belongs to another adapter.

An annotation of the APIService names the scaler that it was made for. Its owner is the ClusterRole of that scaler's
release, so Kubernetes deletes both together. Another scaler that then finds no APIService makes one.
"""

from __future__ import annotations

import base64
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from k8s.kube.external_metrics import GROUP, MARK, NAME, PATH, VERSION, Holder, holder
from k8s.kube.objects import KubernetesError, Object

if TYPE_CHECKING:
    from k8s.kube.connection import Kubernetes

_LOG = logging.getLogger(__name__)
_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles/"
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class Registration:
    """The registration of this release."""

    def __init__(self, kubernetes: Kubernetes, namespace: str, service: str) -> None:
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._service = service
        self._role = f"{service}-{namespace}"
        self._self = Holder(f"{namespace}/{service}", is_scaler=True)
        self._seen: Holder | None = None

    async def keep(self, ca_bundle: bytes) -> None:
        """Make it if it is missing, correct it if it is ours, else log its owner. Raises KubernetesError."""
        found = await self._found()
        if found is None or holder(found).service == self._self.service or _is_orphaned(found):
            await self._apply(found, ca_bundle)
            self._seen = self._self
            return
        if holder(found) != self._seen:
            self._seen = holder(found)
            await self._report_conflict(self._seen)
        if not holder(found).is_scaler:
            await self._remove_owner(found)

    async def _found(self) -> Object | None:
        try:
            return await self._kubernetes.get(PATH)
        except KubernetesError as error:
            if error.status != _NOT_FOUND:
                raise
            return None

    async def _apply(self, found: Object | None, ca_bundle: bytes) -> None:
        """Without force if there is none yet: of two scalers that apply at once, the API server then accepts one."""
        wanted = self._wanted(ca_bundle, await self._owners())
        if found is not None:
            if _holds(found, wanted):
                return
            wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        manager = f"tokenbatch/{self._self.service}"
        try:
            await self._kubernetes.apply(PATH, wanted, manager, force=found is not None)
        except KubernetesError as error:
            if error.status != _CONFLICT:
                raise
            _LOG.info("the registration of the metrics API was changed by another client at the same time")
        else:
            _LOG.info("registered the metrics API", extra={"service": self._self.service})

    def _wanted(self, ca_bundle: bytes, owners: list[Object]) -> Object:
        service = {"namespace": self._namespace, "name": self._service, "port": 443}
        spec: Object = {"group": GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100}
        spec["service"] = service
        if ca_bundle:
            spec["caBundle"] = base64.b64encode(ca_bundle).decode()
        labels = {"app.kubernetes.io/part-of": "tokenbatch", "app.kubernetes.io/managed-by": self._service}
        metadata: Object = {"name": NAME, "labels": labels, "annotations": {MARK: self._self.service}}
        if owners:
            metadata["ownerReferences"] = owners
        return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata, "spec": spec}

    async def _owners(self) -> list[Object]:
        """The chart's ClusterRole; nothing if the rights of the scaler come from elsewhere."""
        try:
            role = await self._kubernetes.get(_ROLES + self._role)
        except KubernetesError as error:
            if error.status not in {_FORBIDDEN, _NOT_FOUND}:
                raise
            return []
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
        return [{**kind, "name": self._role, "uid": role["metadata"]["uid"]}]

    async def _remove_owner(self, found: Object) -> None:
        """Remove this release as the owner: another adapter took the registration over, and must keep it."""
        owners = found["metadata"].get("ownerReferences") or []
        others = [each for each in owners if (each["kind"], each["name"]) != ("ClusterRole", self._role)]
        if len(others) < len(owners):
            metadata = {"ownerReferences": others, "resourceVersion": found["metadata"]["resourceVersion"]}
            await self._kubernetes.patch(PATH, {"metadata": metadata})
            _LOG.warning("another adapter holds the metrics API: it will not be deleted with this release")

    async def _report_conflict(self, other: Holder) -> None:
        """Log it; and make an event if the autoscaler will find no figures."""
        if other.is_scaler:
            _LOG.info("another scaler serves the metrics API, and asks this one", extra={"service": other.service})
            return
        message = (
            f"the external metrics API of this cluster is served by {other.service}, not by {self._self.service}: the"
            " HorizontalPodAutoscalers of this release get no figures and keep their replicas. Set autoscaling.mode"
            " to keda if that is KEDA, or to adapter if it reads Prometheus."
        )
        _LOG.warning("the metrics API is not ours", extra={"holder": other.service})
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._service}-", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Service",
                "namespace": self._namespace,
                "name": self._service,
            },
            "type": "Warning",
            "reason": "MetricsApiTaken",
            "message": message,
            "source": {"component": "tokenbatch-scaler"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self._kubernetes.create(f"/api/v1/namespaces/{self._namespace}/events", event)


def _is_orphaned(found: Object) -> bool:
    """Whether its scaler's Service is gone: nothing else deletes it."""
    conditions = found.get("status", {}).get("conditions") or ()
    gone = any(each.get("reason") == "ServiceNotFound" and each.get("status") == "False" for each in conditions)
    return gone and holder(found).is_scaler


def _holds(found: Object, wanted: Object) -> bool:
    for key, value in wanted.items():
        if isinstance(value, dict):
            if not _holds(found.get(key) or {}, value):
                return False
        elif isinstance(value, list):
            if not all(any(_holds(each, one) for each in found.get(key) or ()) for one in value):
                return False
        elif found.get(key) != value:
            return False
    return True
