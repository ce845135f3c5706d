"""The same model server on a GPU: it takes the device by itself, and its vectors are right."""

from __future__ import annotations

import numpy as np
import pytest

from modelserver.model_files import locate
from tests.integration.modelserver.servers import ServerProcess
from tests.integration.modelserver.texts import generated, questions, token_ids

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def test_on_a_gpu_the_vectors_are_those_of_sentence_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - after the variable, which it reads

    texts = [*questions(100), *generated()]
    reference = SentenceTransformer(str(locate("", "")), device="cpu").encode(texts, normalize_embeddings=True)
    server = ServerProcess({})
    try:
        server.connect()
        assert server.description.device.lower() not in {"cpu", "none"}
        found = server.embed(token_ids(texts)).message
    finally:
        server.kill()
    vectors = np.frombuffer(found.embeddings, "<f4").reshape(len(texts), -1)
    cosines = np.einsum("ij,ij->i", vectors, reference) / np.linalg.norm(vectors, axis=1)
    assert cosines.min() >= 0.999
