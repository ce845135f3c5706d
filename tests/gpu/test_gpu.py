"""The same model server on a GPU: it chooses the device, engine and dtype by itself, and what it computes is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from modelserver.model_files import locate
from tests.integration.modelserver import tiny_models
from tests.integration.modelserver.texts import generated, questions, token_ids
from tests.support.model_server_process import ServerProcess, serving

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
        assert (server.description.engine, server.description.dtype) == ("direct", "float16")
        found = server.embed(token_ids(texts)).message
    finally:
        server.kill()
    vectors = np.frombuffer(found.embeddings, "<f4").reshape(len(texts), -1)
    cosines = np.einsum("ij,ij->i", vectors, reference) / np.linalg.norm(vectors, axis=1)
    assert cosines.min() >= 0.999


def test_on_a_gpu_a_model_embeds_and_generates_in_the_same_steps(tmp_path: Path) -> None:
    model = tiny_models.MODELS["qwen3"]()
    tiny_models.save(model, tmp_path / "tiny")
    tiny_models.limit_tokenizer(tmp_path / "tiny")
    queries = tiny_models.queries()
    expected = model.pooled(queries)
    with serving(MODEL__PATH=str(tmp_path / "tiny"), MODEL__TASK="both") as server:
        assert (list(server.description.tasks), server.description.degraded) == (["embed", "generate"], "")
        assert server.description.engine == "mixed"
        found = server.embed(queries).matrix
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert (np.einsum("ij,ij->i", found, expected) / norms).min() >= 0.99
