"""Endpoints are followed through changes, expiry and outages, and only those that take new work are given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from k8s.kube.connection import Kubernetes
from k8s.kube.endpoints import ServiceAddress, addresses, endpoints, serving
from k8s.pod.errors import StartError
from tests.support.fake_kubernetes import SLICES, FakeKubernetesApi, slice_of

PATH = SLICES.format(namespace="ns")
ADDRESS = ServiceAddress("models", "ns", 50061)


async def following(kubernetes: Kubernetes, answers: asyncio.Queue[frozenset[str]]) -> None:
    async for found in endpoints(kubernetes, ADDRESS):
        answers.put_nowait(found)


@pytest.fixture
def api() -> FakeKubernetesApi:
    return FakeKubernetesApi()


@pytest.fixture
async def answers(api: FakeKubernetesApi) -> AsyncIterator[asyncio.Queue[frozenset[str]]]:
    queue: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    async with api.started() as kubernetes:
        task = asyncio.create_task(following(kubernetes, queue))
        yield queue
        task.cancel()


async def told(answers: asyncio.Queue[frozenset[str]]) -> set[str]:
    return set(await asyncio.wait_for(answers.get(), 30))


async def test_what_comes_and_goes_is_told(api: FakeKubernetesApi, answers: asyncio.Queue[frozenset[str]]) -> None:
    assert await told(answers) == set()
    api.put(f"{PATH}/one", slice_of("10.0.0.1", "10.0.0.2"))
    assert await told(answers) == {"10.0.0.1:50061", "10.0.0.2:50061"}
    api.put(f"{PATH}/two", slice_of("10.0.0.3", name="two"))
    assert await told(answers) == {"10.0.0.1:50061", "10.0.0.2:50061", "10.0.0.3:50061"}
    api.delete(f"{PATH}/one")
    assert await told(answers) == {"10.0.0.3:50061"}


async def test_when_none_is_ready_those_that_were_stay_while_they_are_listed(
    api: FakeKubernetesApi, answers: asyncio.Queue[frozenset[str]]
) -> None:
    await told(answers)
    api.put(f"{PATH}/one", slice_of("10.0.0.1", "10.0.0.2"))
    api.put(f"{PATH}/two", slice_of("10.0.0.3", name="two"))
    while await told(answers) != {"10.0.0.1:50061", "10.0.0.2:50061", "10.0.0.3:50061"}:
        pass
    api.put(f"{PATH}/one", slice_of("10.0.0.1", "10.0.0.2", ready=False))
    assert await told(answers) == {"10.0.0.3:50061"}
    api.put(f"{PATH}/two", slice_of("10.0.0.3", "10.0.0.4", name="two", ready=False))
    assert await told(answers) == {"10.0.0.1:50061", "10.0.0.2:50061", "10.0.0.3:50061"}
    api.put(f"{PATH}/two", slice_of("10.0.0.4", name="two", ready=False))
    assert await told(answers) == {"10.0.0.1:50061", "10.0.0.2:50061"}
    api.put(f"{PATH}/one", slice_of("10.0.0.1"))
    assert await told(answers) == {"10.0.0.1:50061"}
    api.delete(f"{PATH}/one")
    assert await told(answers) == set()


@pytest.mark.parametrize("end", [FakeKubernetesApi.end_watches, FakeKubernetesApi.expire])
async def test_a_watch_that_ends_or_grew_too_old_is_listed_anew_at_once(
    api: FakeKubernetesApi, answers: asyncio.Queue[frozenset[str]], end: object
) -> None:
    await told(answers)
    api.put(f"{PATH}/one", slice_of("10.0.0.1"))
    await told(answers)
    assert callable(end)
    end(api)
    api.put(f"{PATH}/two", slice_of("10.0.0.2", name="two"))
    assert await told(answers) == {"10.0.0.1:50061", "10.0.0.2:50061"}
    assert api.lists == 2


async def test_in_an_outage_the_last_answer_holds(
    api: FakeKubernetesApi, answers: asyncio.Queue[frozenset[str]]
) -> None:
    api.put(f"{PATH}/one", slice_of("10.0.0.1"))
    assert await told(answers) == {"10.0.0.1:50061"}
    api.away = True
    api.end_watches()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(answers.get(), 0.3)
    api.put(f"{PATH}/one", slice_of("10.0.0.9"))
    api.away = False
    assert await told(answers) == {"10.0.0.9:50061"}


def test_unready_endpoints_are_no_addresses_and_hosts_of_six_get_brackets() -> None:
    assert list(addresses(slice_of("10.0.0.1", ready=False), 1)) == []
    assert list(addresses(slice_of("fd00::1") | {"addressType": "IPv6"}, 1)) == ["[fd00::1]:1"]
    assert list(addresses({"endpoints": [{"addresses": ["10.0.0.1"]}]}, 1)) == ["10.0.0.1:1"]
    assert list(addresses({"endpoints": None}, 1)) == []


async def test_where_unready_ones_are_published_pods_still_tell_who_is_ready(
    api: FakeKubernetesApi,
) -> None:
    api.put(f"{PATH}/one", slice_of("10.0.0.1", ready=True, serving=False))
    api.put(f"{PATH}/two", slice_of("10.0.0.2", name="two", ready=True, serving=True))
    api.put(f"{PATH}/three", slice_of("10.0.0.3", name="three", ready=True, serving=True, terminating=True))
    async with api.started() as kubernetes, aclosing(serving(kubernetes, ADDRESS)) as answers:
        assert await anext(answers) == {"10.0.0.1:50061": False, "10.0.0.2:50061": True}
        api.put(f"{PATH}/one", slice_of("10.0.0.1", ready=True, serving=True))
        assert await anext(answers) == {"10.0.0.1:50061": True, "10.0.0.2:50061": True}


@pytest.mark.parametrize("address", ["k8s://a", "k8s://a.b", "k8s://a.b:c", "a.b:1", "k8s://A.b:1"])
def test_what_is_no_service_address_is_refused(address: str) -> None:
    with pytest.raises(StartError, match=r"SERVICE\.NAMESPACE:PORT"):
        ServiceAddress.parse(address)


def test_a_service_address_names_service_namespace_and_port() -> None:
    assert ServiceAddress.parse("k8s://models.ns:50061") == ADDRESS
