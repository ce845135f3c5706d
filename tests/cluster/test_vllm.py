"""vLLM on a CPU in a pod of the restricted standard: MiniLM's own vectors, through Kafka and through gRPC."""

from __future__ import annotations

from collections.abc import Generator

import grpc
import numpy as np
import pytest

from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.cluster import images, kafka_on_node
from tests.cluster.conftest import NewRelease
from tests.cluster.one_node_cluster import OneNodeCluster
from tests.cluster.release import Release
from tests.cluster.values import vllm

SENTENCES = (
    "how far away is the moon",
    "what is the distance from the earth to the moon",
    "who wrote the first symphony",
)


@pytest.fixture(scope="module")
def release(lab: OneNodeCluster, new_release: NewRelease) -> Generator[Release]:
    lab.load(images.CPU)
    with new_release(vllm(kafka_on_node.BOOTSTRAP)).installed(420.0) as release:
        yield release


def test_helm_test_passes(release: Release) -> None:
    assert "384 dimensions" in release.test()


def test_what_means_the_same_is_near(release: Release) -> None:
    with grpc.insecure_channel(release.address()) as channel:
        answer = pb_grpc.EmbeddingsStub(channel).Embed(
            pb.EmbedRequest(request_id="three", inputs=[pb.Input(text=text) for text in list(SENTENCES)]), timeout=60.0
        )
    moon, distance, symphony = (np.frombuffer(each.embedding, "<f4") for each in answer.embeddings)
    assert float(moon @ distance) > 0.7
    assert float(moon @ symphony) < 0.3
