"""Load balancers and tools find out what is served without knowing it beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest as Ask

from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.listening import Listening, listening, refused

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_is_told_per_service_and_changes_are_watched() -> None:
    async with listening() as door:
        health: Any = health_pb2_grpc.HealthStub(door.channel)
        for service in ("", "embedding.v1.Embeddings"):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
        await refused(health.Check(health_pb2.HealthCheckRequest(service="other")), grpc.StatusCode.NOT_FOUND)
        watch = aiter(health.Watch(health_pb2.HealthCheckRequest(service="embedding.v1.Embeddings")))
        assert (await anext(watch)).status == SERVING
        await door.server.set_serving(serving=False)
        assert (await anext(watch)).status == NOT_SERVING


V1, V1_ALPHA = "grpc.reflection.v1", "grpc.reflection.v1alpha"


def reflecting(door: Listening, *asked: Ask, version: str = V1_ALPHA) -> Any:
    return door.channel.stream_stream(
        f"/{version}.ServerReflection/ServerReflectionInfo",
        Ask.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )(iter(asked))


LIST = Ask(list_services="")


@pytest.mark.parametrize("version", [V1, V1_ALPHA])
async def test_reflection_gives_a_tool_all_it_needs_to_call(version: str) -> None:
    symbols = ("", ".Embed", ".EmbedStream", ".ListModels")
    asked = [Ask(file_containing_symbol=f"embedding.v1.Embeddings{symbol}") for symbol in symbols]
    named = ("EmbedRequest", "EmbedRequest.inputs", "Input.text", "Encoding", "ENCODING_FLOAT16")
    asked += [Ask(file_containing_symbol=f"embedding.v1.{symbol}") for symbol in named]
    asked += [Ask(file_by_filename=pb.DESCRIPTOR.name)]
    async with listening() as door:
        listed, *described = [answer async for answer in reflecting(door, LIST, *asked, version=version)]
    services = {service.name for service in listed.list_services_response.service}
    assert services >= {"embedding.v1.Embeddings", "grpc.health.v1.Health"}
    assert len(described) == len(asked)
    for answer in described:
        assert pb.DESCRIPTOR.serialized_pb in answer.file_descriptor_response.file_descriptor_proto


async def test_reflection_says_of_every_unknown_symbol_that_there_is_none() -> None:
    names = (
        "",
        ".",
        "Embed",
        "embedding.v1",
        "embedding.v1.Embeddings.Nothing",
        "embedding.v1.EmbedRequest.Embed",
        "a\0b",
    )
    asked = [Ask(file_containing_symbol=name) for name in names]
    for number in (-1, 0, 1, 2**31 - 1):
        extension = reflection_pb2.ExtensionRequest(containing_type="embedding.v1.Input", extension_number=number)
        asked.append(Ask(file_containing_extension=extension))
    asked += [Ask(file_by_filename="nothing.proto"), Ask(all_extension_numbers_of_type="nothing")]
    async with listening() as door:
        answers = [answer async for answer in reflecting(door, *asked)]
    not_found = grpc.StatusCode.NOT_FOUND.value[0]
    assert [answer.error_response.error_code for answer in answers] == [not_found] * len(asked)


@pytest.mark.parametrize("authentication", [False, True])
async def test_reflection_is_served_unless_callers_need_a_credential(authentication: bool, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("team-a secret")
    settings = {"authentication": {"tokens_file": tmp_path / "tokens"}} if authentication else {}
    async with listening(settings={"grpc": settings}) as door:
        for version in (V1, V1_ALPHA):
            # One message, sent with the call: a stream of them would still be on its way when it is refused.
            call = door.channel.unary_stream(
                f"/{version}.ServerReflection/ServerReflectionInfo",
                Ask.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )(LIST)
            if not authentication:
                assert (await anext(aiter(call))).list_services_response.service
            else:
                assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
