"""The scaler's certificate: made once by whoever comes first, renewed in time, trusted throughout."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from kubernetes.client import Configuration
from typing_extensions import override

from aggregator.wings.scaler.external_metrics.identity import Certificate, is_due, make, serving_certificate
from k8s.kube.connection import Kubernetes
from k8s.kube.objects import KubernetesError, Object
from tests.support.fake_kubernetes import FakeKubernetesApi

NAMES = ("scaler.ns.svc", "scaler.ns.svc.cluster.local")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(days=61)
SECRET = "/api/v1/namespaces/ns/secrets/scaler-tls"


def trusted(made: Certificate, bundle: bytes) -> bool:
    certificate = x509.load_pem_x509_certificate(made.certificate)
    return certificate in x509.load_pem_x509_certificates(bundle)


def test_a_certificate_is_due_at_two_thirds_of_its_time() -> None:
    made = make(NAMES, NOW)
    assert not is_due(made, NAMES, NOW + timedelta(days=59))
    assert is_due(made, NAMES, LATER)


def test_a_certificate_without_one_of_the_names_is_due() -> None:
    assert is_due(make(NAMES[:1], NOW), NAMES, NOW)


@pytest.mark.parametrize("field", ["ca_bundle", "certificate"])
@pytest.mark.parametrize("content", [b"nonsense", make(NAMES, NOW).certificate], ids=["nonsense", "another's"])
def test_a_damaged_certificate_is_due(field: str, content: bytes) -> None:
    made = make(NAMES, NOW)
    parts = {name: getattr(made, name) for name in ("ca_bundle", "certificate", "key")}
    assert is_due(Certificate(**{**parts, field: content}), NAMES, NOW)


def test_a_renewed_certificate_is_trusted_beside_the_one_still_served() -> None:
    first = make(NAMES, NOW)
    second = make(NAMES, LATER, first)
    third = make(NAMES, LATER + timedelta(days=61), second)
    assert trusted(first, second.ca_bundle)
    assert trusted(second, second.ca_bundle)
    assert not is_due(second, NAMES, LATER)
    assert not trusted(first, third.ca_bundle)


async def current(kubernetes: Kubernetes, now: datetime = NOW) -> Certificate:
    return await serving_certificate(kubernetes, "ns", "scaler", lambda: now)


def api() -> FakeKubernetesApi:
    fake = FakeKubernetesApi()
    fake.put(SECRET, {"type": "Opaque"})
    return fake


async def test_replicas_that_start_together_serve_the_same_certificate() -> None:
    fake = api()
    async with fake.started() as kubernetes:
        found = await asyncio.gather(*(current(kubernetes) for _ in range(4)))
    assert len({each.certificate for each in found}) == 1


async def test_nothing_is_written_while_all_is_well() -> None:
    fake = api()
    async with fake.started() as kubernetes:
        await current(kubernetes)
        fake.calls.clear()
        await current(kubernetes)
    assert {call.split()[0] for call in fake.calls} == {"GET"}


async def test_a_renewal_in_time_is_made_by_one_and_taken_by_the_other() -> None:
    fake = api()
    async with fake.started() as kubernetes:
        first = await current(kubernetes)
        found = await asyncio.gather(*(current(kubernetes, LATER) for _ in range(2)))
    assert found[0].certificate == found[1].certificate != first.certificate


THEIRS = {"annotations": {"cert-manager.io/certificate-name": "scaler", "team": "search"}}


def encoded_of(made: Certificate) -> dict[str, str]:
    data = {"ca.crt": made.ca_bundle, "tls.crt": made.certificate, "tls.key": made.key}
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


async def test_what_cert_manager_makes_is_waited_for_and_taken_as_it_is() -> None:
    fake = FakeKubernetesApi()
    theirs = THEIRS
    made = make(("other.example",), NOW)
    fake.put(SECRET, {"metadata": dict(theirs)})
    async with fake.started() as kubernetes:
        with pytest.raises(KubernetesError, match="does not hold a certificate yet"):
            await current(kubernetes)
        encoded = encoded_of(made)
        fake.put(SECRET, {"metadata": dict(theirs), "data": encoded})
        assert await current(kubernetes, LATER) == made
        del encoded["ca.crt"]
        fake.put(SECRET, {"metadata": dict(theirs), "data": encoded})
        assert await current(kubernetes, LATER) == Certificate(b"", made.certificate, made.key)
    assert {call.split()[0] for call in fake.calls} == {"GET"}


async def test_what_cert_manager_left_behind_is_renewed_once_it_has_expired() -> None:
    fake = FakeKubernetesApi()
    left = make(NAMES, NOW)
    fake.put(SECRET, {"metadata": dict(THEIRS), "data": encoded_of(left)})
    async with fake.started() as kubernetes:
        expired = NOW + timedelta(days=91)
        assert await current(kubernetes, NOW + timedelta(days=89)) == left
        made = await current(kubernetes, expired)
        assert await current(kubernetes, expired) == made != left
        assert fake.objects[SECRET]["metadata"]["annotations"] == {"team": "search"}
        assert await current(kubernetes, expired + timedelta(days=61)) != made  # renewed in time from now on


class ReadOnly(Kubernetes):
    """The API with the rights that the scaler has while cert-manager makes its certificate."""

    @override
    async def update(self, path: str, content: Object) -> Object:
        raise KubernetesError(403, "secrets is forbidden")


async def test_an_expired_certificate_of_cert_manager_is_renewed() -> None:
    fake = FakeKubernetesApi()
    late = make(NAMES, NOW)
    fake.put(SECRET, {"metadata": dict(THEIRS), "data": encoded_of(late)})
    async with fake.started():
        kubernetes = ReadOnly(Configuration(fake.url, proxy=""))
        assert await current(kubernetes, NOW + timedelta(days=91)) == late
        fake.put(SECRET, {"data": encoded_of(late)})
        with pytest.raises(KubernetesError, match="forbidden"):
            await current(kubernetes, NOW + timedelta(days=91))
        await kubernetes.close()
