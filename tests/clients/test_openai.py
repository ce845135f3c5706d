"""Clients of OpenAI's API that nobody here wrote: their vectors are those of gRPC."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import grpc
import pytest

from loadtest.stack.part import python_of
from protos.embedding.v1 import embedding_pb2 as pb
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.clients.conftest import Stack

TEXTS = ["who wrote hamlet", "rain in spain", "Überraschung 東京", "a longer question about batches of tokens"]
MODEL = "all-minilm-l6-v2"
WRITE = """
import base64, json
from array import array
print(json.dumps([base64.b64encode(array("f", vector).tobytes()).decode() for vector in vectors]))
"""
READ = "import json, sys\nurl, model = sys.argv[1:]\ntexts = json.load(sys.stdin)\n"
LANGCHAIN = """from langchain_openai import OpenAIEmbeddings
vectors = OpenAIEmbeddings(base_url=url, api_key='none', model=model{}).embed_documents(texts)"""
PROGRAMS = {
    "openai": """
from openai import OpenAI
answer = OpenAI(base_url=url, api_key="none").embeddings.create(model=model, input=texts)
vectors = [each.embedding for each in answer.data]""",
    "openai, floats": """
from openai import OpenAI
answer = OpenAI(base_url=url, api_key="none").embeddings.create(model=model, input=texts, encoding_format="float")
vectors = [each.embedding for each in answer.data]""",
    "langchain": LANGCHAIN.format(", check_embedding_ctx_length=False"),
    "llama-index": """
from llama_index.embeddings.openai import OpenAIEmbedding
vectors = OpenAIEmbedding(api_base=url, api_key="none", model_name=model).get_text_embedding_batch(texts)""",
    "litellm": """
import litellm
answer = litellm.embedding(model=f"openai/{model}", input=texts, api_base=url, api_key="none")
vectors = [each["embedding"] for each in answer.data]""",
}
NODE = """
import OpenAI from "openai";
import { readFileSync } from "node:fs";
const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none" });
const answer = await client.embeddings.create({ model, input: JSON.parse(readFileSync(0, "utf8")) });
console.log(JSON.stringify(answer.data.map((each) =>
  Buffer.from(new Float32Array(each.embedding).buffer).toString("base64"))));
"""
NODE_PACKAGE = {"private": True, "type": "module", "dependencies": {"openai": "7.57.0"}}
STILL = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGCHAIN_TRACING_V2": "false", "TIKTOKEN_CACHE_DIR": "absent"}
"""Ask nobody else for anything."""

pytestmark = pytest.mark.timeout(600)  # what is downloaded the first time


def vectors_by_grpc(stack: Stack) -> list[bytes]:
    with grpc.insecure_channel(stack.grpc) as channel:
        request = pb.EmbedRequest(model=MODEL, inputs=[pb.Input(text=text) for text in TEXTS])
        answer = pb_grpc.EmbeddingsStub(channel).Embed(request, timeout=20)
    return [each.embedding for each in answer.embeddings]


def python(program: str, stack: Stack) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python_of("clients"), "-c", READ + program + WRITE, f"http://{stack.http}/v1", MODEL],
        input=json.dumps(TEXTS),
        env={**os.environ, **STILL},
        capture_output=True,
        text=True,
        check=False,
    )


def shown(done: subprocess.CompletedProcess[str]) -> list[bytes]:
    assert done.returncode == 0, done.stderr
    return [base64.b64decode(each) for each in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.parametrize("client", PROGRAMS)
def test_the_vectors_of_a_python_client_are_those_of_grpc(client: str, stack: Stack) -> None:
    assert shown(python(PROGRAMS[client], stack)) == vectors_by_grpc(stack)


def test_the_vectors_of_the_node_client_are_those_of_grpc(tmp_path: Path, stack: Stack) -> None:
    (tmp_path / "package.json").write_text(json.dumps(NODE_PACKAGE))
    (tmp_path / "vectors.mjs").write_text(NODE)
    install = ["npm", "install", "--silent", "--no-package-lock"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    command = ["node", "vectors.mjs", f"http://{stack.http}/v1", MODEL]
    done = subprocess.run(command, cwd=tmp_path, input=json.dumps(TEXTS), capture_output=True, text=True, check=False)
    assert shown(done) == vectors_by_grpc(stack)


IDS = """
from openai import BadRequestError, OpenAI
import langchain_openai.embeddings.base as base
class Encoding:
    def encode(self, text, **_): return [ord(each) for each in text]
    def encode_ordinary(self, text): return self.encode(text)
base.tiktoken.encoding_for_model = base.tiktoken.get_encoding = lambda name: Encoding()
try:
    {program}
except BadRequestError as error:
    print(error.status_code, error.body["message"])
    sys.exit()
"""


def test_langchain_s_default_is_refused_with_the_option_to_set(stack: Stack) -> None:
    """OpenAI's tokenizer is downloaded when LangChain needs it; here another one takes its place."""
    done = python(IDS.format(program=LANGCHAIN.format(", max_retries=0").replace("\n", "\n    ")), stack)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("400 ")
    assert "check_embedding_ctx_length=False" in done.stdout
