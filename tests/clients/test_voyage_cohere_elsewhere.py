"""Voyage's client for Node and Cohere's for Go, as their users run them: they leave out what Python's clients send."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtest.texts.minilm_ranker import NAME as RANKING
from tests.clients.conftest import Stack
from tests.clients.test_openai import MODEL, TEXTS, vectors_by_grpc
from tests.clients.test_voyage_cohere import quantized, ranked_by_grpc

NODE_PACKAGE = {"private": True, "type": "module", "dependencies": {"voyageai": "0.4.0"}}
NODE = """
import { readFileSync } from "node:fs";
import { VoyageAIClient } from "voyageai";
const [url, model, ranker] = process.argv.slice(2);
const texts = JSON.parse(readFileSync(0, "utf8"));
const [query, ...documents] = texts;
const client = new VoyageAIClient({ apiKey: "none", environment: url + "/v1", baseUrl: url + "/v1" });
const embedded = await client.embed({ input: texts, model });
const plain = await client.rerank({ query, documents, model: ranker });
const shown = await client.rerank({ query, documents, model: ranker, topK: 3, returnDocuments: true });
const chunked = await client.contextualizedEmbed({ inputs: [texts, texts.slice(0, 1)], model, inputType: "document" });
console.log(JSON.stringify({
  embedded: embedded.data.map((each) => each.embedding),
  tokens: [embedded.usage.totalTokens, plain.usage.totalTokens],
  plain: plain.data.map((each) => [each.index, each.relevanceScore]),
  shown: shown.data.map((each) => [each.index, each.relevanceScore, each.document === documents[each.index]]),
  chunks: chunked.results.map((each) => each.embeddings.length),
}));
"""
GO_MODULE = "github.com/cohere-ai/cohere-go/v2/client@v2.15.3"
GO = """
package main

import (
	"context"
	"encoding/json"
	"os"

	cohere "github.com/cohere-ai/cohere-go/v2"
	"github.com/cohere-ai/cohere-go/v2/client"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	url, model, ranker := os.Args[1], os.Args[2], os.Args[3]
	var texts []string
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		panic(err)
	}
	ctx, co := context.Background(), client.NewClient(client.WithBaseURL(url), client.WithToken("none"))
	use := cohere.EmbedInputTypeSearchQuery
	plain := must(co.Embed(ctx, &cohere.EmbedRequest{Texts: texts, Model: &model, InputType: &use}))
	types := []cohere.EmbeddingType{cohere.EmbeddingTypeFloat, cohere.EmbeddingTypeInt8}
	typed := must(co.Embed(ctx, &cohere.EmbedRequest{
		Texts: texts, Model: &model, InputType: &use, EmbeddingTypes: types,
	}))
	documents := []*cohere.RerankRequestDocumentsItem{}
	for _, each := range texts[1:] {
		documents = append(documents, &cohere.RerankRequestDocumentsItem{String: each})
	}
	top := 3
	ranked := must(co.Rerank(ctx, &cohere.RerankRequest{
		Query: texts[0], Documents: documents, Model: &ranker, TopN: &top,
	}))
	scores := [][]float64{}
	for _, each := range ranked.Results {
		scores = append(scores, []float64{float64(each.Index), each.RelevanceScore})
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{
		"plain":  plain.EmbeddingsFloats.Embeddings,
		"floats": typed.EmbeddingsByType.Embeddings.Float,
		"int8":   typed.EmbeddingsByType.Embeddings.Int8,
		"ranked": scores,
	})
}
"""

pytestmark = pytest.mark.timeout(600)  # what is downloaded and compiled the first time


def printed(folder: Path, command: list[str], stack: Stack) -> Any:
    done = subprocess.run(
        [*command, f"http://{stack.http}", MODEL, RANKING],
        cwd=folder,
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def right(stack: Stack) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array([np.frombuffer(each, "<f4") for each in vectors_by_grpc(stack)])


def test_voyage_s_client_for_node_embeds_and_ranks(tmp_path: Path, stack: Stack) -> None:
    (tmp_path / "package.json").write_text(json.dumps(NODE_PACKAGE))
    (tmp_path / "voyage.mjs").write_text(NODE)
    install = ["npm", "install", "--silent", "--no-package-lock"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    found = printed(tmp_path, ["node", "voyage.mjs"], stack)
    np.testing.assert_allclose(found["embedded"], right(stack), atol=1e-6)
    assert min(found["tokens"]) > len(TEXTS) - 1
    assert found["plain"][:3] == ranked_by_grpc(stack)
    assert len(found["plain"]) == len(TEXTS) - 1
    assert found["shown"] == [[*each, True] for each in ranked_by_grpc(stack)]
    assert found["chunks"] == [len(TEXTS), 1]


def test_cohere_s_client_for_go_embeds_and_ranks(tmp_path: Path, stack: Stack) -> None:
    (tmp_path / "main.go").write_text(GO)
    for command in (["go", "mod", "init", "example.com/client"], ["go", "get", GO_MODULE]):
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    found = printed(tmp_path, ["go", "run", "."], stack)
    np.testing.assert_allclose(found["plain"], right(stack), atol=1e-6)
    np.testing.assert_allclose(found["floats"], right(stack), atol=1e-6)
    assert found["int8"] == quantized(right(stack))["int8"]
    assert found["ranked"] == ranked_by_grpc(stack)
