"""Load balancers and tools find out what is served without knowing it beforehand."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from protos.embedding.v1 import embedding_pb2 as pb
from tests.integration.frontdoor.door import Door, front_door

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_is_told_per_service_and_changes_are_watched() -> None:
    async with front_door() as door:
        health: Any = health_pb2_grpc.HealthStub(door.channel)
        for service in ("", "embedding.v1.Embeddings"):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="other.Service"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = aiter(health.Watch(health_pb2.HealthCheckRequest(service="embedding.v1.Embeddings")))
        assert (await anext(watch)).status == SERVING
        await door.server.set_serving(serving=False)
        assert (await anext(watch)).status == NOT_SERVING


def reflecting(door: Door, *asked: reflection_pb2.ServerReflectionRequest) -> Any:
    return door.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )(iter(asked))


LIST = reflection_pb2.ServerReflectionRequest(list_services="")
DESCRIBE = reflection_pb2.ServerReflectionRequest(file_containing_symbol="embedding.v1.Embeddings")


async def test_reflection_gives_a_tool_all_it_needs_to_call() -> None:
    async with front_door() as door:
        listed, described = [answer async for answer in reflecting(door, LIST, DESCRIBE)]
    services = {service.name for service in listed.list_services_response.service}
    assert services >= {"embedding.v1.Embeddings", "grpc.health.v1.Health"}
    assert pb.DESCRIPTOR.serialized_pb in described.file_descriptor_response.file_descriptor_proto


async def test_reflection_can_be_turned_off() -> None:
    async with front_door(settings={"grpc": {"reflection": False}}) as door:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(reflecting(door, LIST)))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
