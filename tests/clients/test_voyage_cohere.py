"""Voyage's and Cohere's official clients, as their users run them: each value is computed from gRPC's vectors."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import grpc
import numpy as np
import pytest

from loadtest.stack.part import python_of
from loadtest.texts.minilm_ranker import NAME as RANKING
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from protos.ranking.v1 import ranking_pb2, ranking_pb2_grpc
from tests.clients.conftest import Stack
from tests.clients.test_openai import MODEL, STILL, TEXTS, vectors_by_grpc

RANK = """
import voyageai, cohere
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank
query, *documents = texts
voyage = voyageai.Client(api_key="none", base_url=url + "/v1").rerank(query, documents, model=model, top_k=3)
by_cohere = cohere.ClientV2(api_key="none", base_url=url).rerank(model=model, query=query, documents=documents, top_n=3)
jina = JinaRerank(api_key="none", model=model, top_n=3, base_url=url + "/v1")
nodes = [NodeWithScore(node=TextNode(text=each)) for each in documents]
by_jina = jina.postprocess_nodes(nodes, query_str=query)
print(json.dumps({
    "voyage": [[each.index, each.relevance_score, each.document == documents[each.index]] for each in voyage.results],
    "cohere": [[each.index, each.relevance_score, True] for each in by_cohere.results],
    "jina": [[documents.index(each.node.get_content()), each.score, True] for each in by_jina],
    "tokens": voyage.total_tokens,
}))
"""
FRAMEWORKS = """
from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from langchain_cohere import CohereRerank
query, *documents = texts
by_haystack = [
    CohereRanker(model=model, api_key=Secret.from_token("none"), api_base_url=url, top_k=3),
    JinaRanker(model=model, api_key=Secret.from_token("none"), base_url=url + "/v1/rerank", top_k=3),
]
given = [Document(content=each) for each in documents]
found = [
    [[documents.index(each.content), each.score] for each in ranker.run(query, given)["documents"]]
    for ranker in by_haystack
]
by_langchain = CohereRerank(model=model, cohere_api_key="none", base_url=url, top_n=3).rerank(documents, query)
found.append([[each["index"], each["relevance_score"]] for each in by_langchain])
print(json.dumps(found))
"""
READ = "import json, sys\nurl, model = sys.argv[1:]\ntexts = json.load(sys.stdin)\n"
VOYAGE = """
import voyageai
client = voyageai.Client(api_key="none", base_url=url + "/v1")
found = {}
for dtype in ("float", "int8", "uint8", "binary", "ubinary", None):
    answer = client.embed(texts, model=model, output_dtype=dtype, input_type="query", truncation=False)
    found[str(dtype)] = answer.embeddings
found["tokens"] = answer.total_tokens
print(json.dumps(found))
"""
COHERE = """
import cohere
client = cohere.ClientV2(api_key="none", base_url=url)
types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
answer = client.embed(texts=texts, model=model, input_type="search_query", embedding_types=types, truncate="NONE")
vectors = answer.embeddings
found = {name: getattr(vectors, "float_" if name == "float" else name) for name in types}
found["tokens"] = answer.meta.billed_units.input_tokens
print(json.dumps(found))
"""
DOCUMENTS = """
import voyageai
client = voyageai.Client(api_key="none", base_url=url + "/v1")
answer = client.contextualized_embed(inputs=[texts, texts[:1]], model=model, input_type="document")
split = client.contextualized_embed(inputs=[[" ".join(texts)]], model=model, chunk_fn=str.split, output_dtype="int8")
query = client.contextualized_embed(inputs=texts[:1], model=model, input_type="query")
print(json.dumps({
    "documents": [each.embeddings for each in answer.results],
    "tokens": answer.total_tokens,
    "words": [len(each.embeddings) for each in split.results],
    "query": query.results[0].embeddings,
}))
"""
COHERE_1 = """
import cohere
client = cohere.Client(api_key="none", base_url=url)
many = texts * 100  # more than go into one call of its
plain = client.embed(texts=many, model=model, input_type="search_query")
types = ["float", "int8", "uint8", "binary", "ubinary"]
vectors = client.embed(texts=texts, model=model, input_type="search_query", embedding_types=types).embeddings
ranked = client.rerank(model="ranker", query=texts[0], documents=[{"text": each} for each in texts[1:]], top_n=3)
print(json.dumps({
    "plain": plain.embeddings[-len(texts):],
    "count": len(plain.embeddings),
    **{name: getattr(vectors, "float_" if name == "float" else name) for name in types},
    "ranked": [[each.index, each.relevance_score] for each in ranked.results],
}))
"""
LANGCHAIN = """
from langchain_cohere import CohereEmbeddings, CohereRerank
found = CohereEmbeddings(model=model, cohere_api_key="none", base_url=url)
print(json.dumps({"documents": found.embed_documents(texts), "query": found.embed_query(texts[0])}))
"""
LITELLM = """
import litellm
query, *documents = texts
found = []
for route, base in (
    ("voyage", url + "/v1"), ("cohere", url), ("jina_ai", url + "/v1"), ("hosted_vllm", url), ("infinity", url)
):
    silent = {"return_documents": False} if route == "infinity" else {}  # it reads texts where Jina has objects
    for fields in ({}, {"top_n": 3}):
        answer = litellm.rerank(
            f"{route}/ranker", query, documents + [""], api_base=base, api_key="none", **silent, **fields
        )
        found.append([route, [[each["index"], each["relevance_score"]] for each in answer.results][:3]])
embedded = [
    litellm.embedding(f"{route}/{model}", input=texts, api_base=base, api_key="none", **fields).data
    for route, base, fields in (
        ("voyage", url + "/v1/embeddings", {}),
        ("cohere", url + "/v1/embed", {"input_type": "search_query"}),
        ("cohere", url + "/v2/embed", {"input_type": "search_query"}),
        ("openai", url + "/v1", {}),
        ("hosted_vllm", url + "/v1", {}),
        ("jina_ai", url + "/v1/embeddings", {}),
    )
]
print(json.dumps([found, [[each["embedding"] for each in data] for data in embedded]]))
"""
LONG = """
import voyageai, cohere
long = ["rain " * 5000]
try:
    voyageai.Client(api_key="none", base_url=url + "/v1").embed(long, model=model, truncation=False)
except voyageai.error.InvalidRequestError as error:
    print(error)
try:
    cohere.ClientV2(api_key="none", base_url=url).embed(
        texts=long, model=model, input_type="search_query", embedding_types=["float"], truncate="NONE")
except cohere.BadRequestError as error:
    print(error.body["message"])
voyageai.Client(api_key="none", base_url=url + "/v1").embed(long, model=model)
"""

pytestmark = pytest.mark.timeout(600)  # what is downloaded the first time


def run(program: str, stack: Stack, model: str = MODEL, environment: str = "clients") -> str:
    done = subprocess.run(
        [python_of(environment), "-c", READ + program, f"http://{stack.http}", model],
        input=json.dumps(TEXTS),
        env={**os.environ, **STILL},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def quantized(vectors: np.ndarray[Any, np.dtype[np.float32]]) -> dict[str, list[list[int]]]:
    """The types by what Voyage's and Cohere's pages say of them."""
    int8 = np.rint(vectors / np.abs(vectors).max(axis=1, keepdims=True) * 127).astype(int)
    bits = np.packbits(vectors >= 0, axis=1).astype(int)
    found = {"int8": int8, "uint8": int8 + 128, "ubinary": bits, "binary": bits - 128}
    return {name: each.tolist() for name, each in found.items()}


def exact(vectors: list[list[float]]) -> list[bytes]:
    return [np.array(each, "<f4").tobytes() for each in vectors]


def test_voyage_s_client_gets_every_dtype(stack: Stack) -> None:
    right = vectors_by_grpc(stack)
    found = json.loads(run(VOYAGE, stack))
    assert exact(found["float"]) == exact(found["None"]) == right
    vectors = np.array([np.frombuffer(each, "<f4") for each in right])
    for name, each in quantized(vectors).items():
        assert found[name] == each
    assert found["tokens"] > len(TEXTS)


def test_voyage_s_client_gets_the_vectors_of_chunks_as_grpc_does(stack: Stack) -> None:
    found = json.loads(run(DOCUMENTS, stack))
    with grpc.insecure_channel(stack.grpc) as channel:
        inputs = [pb.Input(chunks=pb.Chunks(texts=texts)) for texts in (TEXTS, TEXTS[:1])]
        answer = pb_grpc.EmbeddingsStub(channel).Embed(
            pb.EmbedRequest(model=MODEL, inputs=inputs, input_type="INPUT_TYPE_DOCUMENT")
        )
    assert [exact(each) for each in found["documents"]] == [
        [chunk.embedding for chunk in each.chunks] for each in answer.embeddings
    ]
    assert found["tokens"] == sum(each.token_count for each in answer.embeddings)
    assert found["words"] == [len(" ".join(TEXTS).split())]
    assert len(found["query"]) == 1


def test_cohere_s_client_gets_every_type_at_once(stack: Stack) -> None:
    right = vectors_by_grpc(stack)
    found = json.loads(run(COHERE, stack))
    assert exact(found["float"]) == right
    vectors = np.array([np.frombuffer(each, "<f4") for each in right])
    for name, each in quantized(vectors).items():
        assert found[name] == each
    assert found["tokens"] > len(TEXTS)


def test_version_1_of_cohere_s_client_gets_the_same(stack: Stack) -> None:
    right = vectors_by_grpc(stack)
    found = json.loads(run(COHERE_1, stack))
    assert exact(found["plain"]) == exact(found["float"]) == right
    assert found["count"] == 100 * len(TEXTS)
    vectors = np.array([np.frombuffer(each, "<f4") for each in right])
    for name in ("int8", "uint8", "binary", "ubinary"):
        assert found[name] == quantized(vectors)[name]
    assert found["ranked"] == ranked_by_grpc(stack)


def test_langchain_s_embeddings_of_cohere_are_grpc_s(stack: Stack) -> None:
    right = vectors_by_grpc(stack)
    found = json.loads(run(LANGCHAIN, stack, environment="tools"))
    assert exact(found["documents"]) == right
    assert exact([found["query"]]) == right[:1]


def test_every_route_of_litellm_ranks_and_embeds(stack: Stack) -> None:
    ranked, embedded = json.loads(run(LITELLM, stack))
    for route, found in ranked:
        assert found == ranked_by_grpc(stack), route
    for vectors in embedded:
        np.testing.assert_allclose(vectors, [np.frombuffer(each, "<f4") for each in vectors_by_grpc(stack)], atol=1e-6)


def test_each_reads_the_refusal_of_a_text_that_is_too_long(stack: Stack) -> None:
    voyage, cohere = run(LONG, stack).splitlines()
    assert voyage.endswith("send less, or set truncation to true")
    assert cohere.endswith("send less, or set truncate to END")


def test_rerankers_get_the_order_and_the_scores_of_grpc(stack: Stack) -> None:
    found = json.loads(run(RANK, stack, RANKING))
    right = [[*each, True] for each in ranked_by_grpc(stack)]
    assert found["voyage"] == found["cohere"] == found["jina"] == right
    assert found["tokens"] > len(TEXTS[1:])


def test_the_rerankers_of_haystack_and_langchain_get_them_too(stack: Stack) -> None:
    assert json.loads(run(FRAMEWORKS, stack, RANKING, "tools")) == [ranked_by_grpc(stack)] * 3


def ranked_by_grpc(stack: Stack) -> list[list[Any]]:
    """The three best documents, each by its index and score."""
    query, *documents = TEXTS
    with grpc.insecure_channel(stack.grpc) as channel:
        request = ranking_pb2.RankRequest(model=RANKING, query=query, documents=documents, top_n=3)
        answer = ranking_pb2_grpc.RankingStub(channel).Rank(request)
    return [[each.index, pytest.approx(each.score, abs=1e-6)] for each in answer.results]
