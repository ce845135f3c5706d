"""Every mode of scaling with every kind of installation: clean to `helm lint`, and strictly valid."""

from __future__ import annotations

import kubernetes_validate
import pytest

from tests.chart.custom_resources import validate
from tests.chart.rendering import CHART, VALUES, render, run

MODES = ("hpa", "keda", "adapter", "none")
KINDS = {
    "plain": "",
    "secured": "aggregator.frontDoor.tls.secretName=t,scaler.certificates.certManager=true,kafka.ca.secretName=c"
    ",kafka.ca.key=k",
    "without rights or policies": "serviceAccounts.create=false,networkPolicy.enabled=false",
    "outside": "aggregator.serviceType=LoadBalancer,aggregator.grpcRoute.spec.parentRefs[0].name=g",
    "over HTTP": "aggregator.http.enabled=true,aggregator.http.httpRoute.spec.parentRefs[0].name=g"
    ",aggregator.http.ingress.spec.ingressClassName=i",
    "watched, on a CPU": "monitoring.podMonitor=true,monitoring.rules=true,modelServer.gpu.count=0",
    "unscaled in part": "modelServer.autoscaling.enabled=false,aggregator.replicas=3,modelServer.cache.persistent=true",
}
OWN = ("gateway.", "keda.", "cert-manager.", "monitoring.")


@pytest.mark.parametrize(("mode", "kind"), [(mode, kind) for mode in MODES for kind in KINDS])
def test_each_combination_can_be_installed(mode: str, kind: str) -> None:
    values = ",".join(filter(None, (f"autoscaling.mode={mode}", KINDS[kind])))
    linted = run(4, "lint", "--strict", str(CHART), "--values", str(VALUES / "default.yaml"), "--set", values)
    assert linted.returncode == 0, linted.stdout
    for each in render("default", "--set", values):
        if each["apiVersion"].startswith(OWN):
            validate(each)
            continue
        for version in ("1.29", "1.37"):
            kubernetes_validate.validate(each, version, strict=True)
