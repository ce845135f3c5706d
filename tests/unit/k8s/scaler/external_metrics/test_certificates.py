"""The scaler's certificate: made once by whoever comes first, renewed in time, trusted throughout."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from k8s.api import Kubernetes, KubernetesError
from k8s.scaler.external_metrics.certificates import Certificates, is_due, make
from k8s.scaler.external_metrics.identity import SharedCertificate
from tests.fakes.kubernetes_api import FakeKubernetesApi

NAMES = ("scaler.ns.svc", "scaler.ns.svc.cluster.local")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECRET = "/api/v1/namespaces/ns/secrets/tls"


def authorities(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle)


def trusted(certificates: Certificates, bundle: bytes) -> bool:
    certificate = x509.load_pem_x509_certificate(certificates.certificate)
    for ca in authorities(bundle):
        try:
            certificate.verify_directly_issued_by(ca)
        except Exception:  # noqa: BLE001, S112 - another authority's
            continue
        return True
    return False


def test_a_certificate_names_the_service_and_is_signed_by_the_authority() -> None:
    made = make(NAMES, NOW)
    assert trusted(made, made.ca_bundle)
    assert not is_due(made, NAMES, NOW)


def test_a_certificate_is_due_at_two_thirds_of_its_time() -> None:
    made = make(NAMES, NOW)
    assert not is_due(made, NAMES, NOW + timedelta(days=59))
    assert is_due(made, NAMES, NOW + timedelta(days=61))


def test_a_certificate_without_one_of_the_names_is_due() -> None:
    assert is_due(make(NAMES[:1], NOW), NAMES, NOW)


@pytest.mark.parametrize("field", ["ca_bundle", "certificate"])
def test_a_damaged_certificate_is_due(field: str) -> None:
    made = make(NAMES, NOW)
    parts = {name: getattr(made, name) for name in ("ca_bundle", "ca_key", "certificate", "key")}
    assert is_due(Certificates(**{**parts, field: b"nonsense"}), NAMES, NOW)


def test_a_renewal_keeps_the_authority_so_that_nobody_has_to_learn_a_new_one() -> None:
    first = make(NAMES, NOW)
    second = make(NAMES, NOW + timedelta(days=61), first)
    assert second.ca_bundle == first.ca_bundle
    assert second.certificate != first.certificate
    assert trusted(second, first.ca_bundle)


def test_a_new_authority_is_bundled_with_the_old_one_while_that_is_still_served() -> None:
    first = make(NAMES, NOW)
    later = NOW + timedelta(days=3650 - 300)
    second = make(NAMES, later, first)
    assert len(authorities(second.ca_bundle)) == 2
    assert trusted(first, second.ca_bundle)
    assert trusted(second, second.ca_bundle)
    third = make(NAMES, later + timedelta(days=61), second)
    assert third.ca_bundle == second.ca_bundle


def test_a_damaged_authority_is_replaced() -> None:
    first = make(NAMES, NOW)
    second = make(NAMES, NOW, Certificates(first.ca_bundle, b"nonsense", first.certificate, first.key))
    assert trusted(second, second.ca_bundle)
    assert not trusted(second, first.ca_bundle)
    third = make(NAMES, NOW, Certificates(b"nonsense", first.ca_key, first.certificate, first.key))
    assert len(authorities(third.ca_bundle)) == 1


def shared(kubernetes: Kubernetes, now: datetime = NOW) -> SharedCertificate:
    return SharedCertificate(kubernetes, namespace="ns", secret="tls", names=NAMES, clock=lambda: now)


def api() -> FakeKubernetesApi:
    fake = FakeKubernetesApi()
    fake.put(SECRET, {"type": "Opaque"})
    return fake


async def test_the_first_makes_a_certificate() -> None:
    fake = api()
    async with fake.started() as kubernetes:
        made = await shared(kubernetes).current()
    assert base64.b64decode(fake.objects[SECRET]["data"]["tls.crt"]) == made.certificate


async def test_replicas_that_start_together_serve_the_same_certificate() -> None:
    fake = api()
    async with fake.started() as kubernetes:
        found = await asyncio.gather(*(shared(kubernetes).current() for _ in range(4)))
    assert len({each.certificate for each in found}) == 1


async def test_nothing_is_written_while_all_is_well() -> None:
    fake = api()
    async with fake.started() as kubernetes:
        await shared(kubernetes).current()
        fake.calls.clear()
        await shared(kubernetes).current()
    assert {call.split()[0] for call in fake.calls} == {"GET"}


async def test_a_renewal_in_time_is_made_by_one_and_taken_by_the_other() -> None:
    fake = api()
    later = NOW + timedelta(days=61)
    async with fake.started() as kubernetes:
        first = await shared(kubernetes).current()
        found = await asyncio.gather(*(shared(kubernetes, later).current() for _ in range(2)))
    assert found[0].certificate == found[1].certificate != first.certificate


async def test_a_secret_that_holds_nonsense_is_overwritten() -> None:
    fake = api()
    fake.put(SECRET, {"data": dict.fromkeys(("ca.crt", "ca.key", "tls.crt", "tls.key"), "%")})
    async with fake.started() as kubernetes:
        made = await shared(kubernetes).current()
    assert not is_due(made, NAMES, NOW)


async def test_without_the_secret_it_says_so() -> None:
    async with FakeKubernetesApi().started() as kubernetes:
        with pytest.raises(KubernetesError, match="404"):
            await shared(kubernetes).current()
