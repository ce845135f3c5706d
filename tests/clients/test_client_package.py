"""The client package, as a wheel in an environment of its own, against a whole stack; it says what it calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.texts.minilm_ranker import NAME as RANKING
from loadtest.texts.smollm2 import NAME as GENERATING
from tests.clients.conftest import Stack

ROOT = Path(__file__).parents[2]
UV = Path(sys.prefix) / "uv" / "bin" / "uv"
BARE = {"grpcio", "protobuf", "tokenbatch-client", "typing-extensions"}
READ = "import asyncio, json, sys\nfrom tokenbatch_client import *\ngiven = json.load(sys.stdin)\n"
CALLS = """
with Client(given["grpc"]) as client:
    rows = client.embed(["who wrote hamlet", "how deep is the ocean"])
    streamed = dict(client.embed_stream([f"question {n}" for n in range(100)]))
    ranked = client.rank("a river", ["Paris", "a river of France", ""], model=given["ranker"])
    text = client.generate("once upon", model=given["generating"], max_tokens=5, ignore_eos=True)
    chat = [{"role": "user", "content": "hi"}]
    parts = [each.text for each in client.stream(chat, model=given["generating"], max_tokens=5, ignore_eos=True)]
    partly = client.embed(["fine", ""], errors="return")
    raised = {}
    for name, call in {
        "empty": lambda: client.embed(["fine", ""]),
        "model": lambda: client.embed(["fine"], model="nobody"),
        "word": lambda: client.embed(["fine"], priority="urgent"),
        "sampling": lambda: client.generate("once", model=given["generating"], maximum=5),
    }.items():
        try:
            call()
        except TokenbatchError as error:
            raised[name] = [type(error).__name__, error.code, str(error)]
    try:
        Client("127.0.0.1:9").embed(["fine"], timeout_s=1)
    except TokenbatchError as error:
        raised["nowhere"] = [type(error).__name__, error.code, str(error)]
print(json.dumps({
    "dimensions": [len(vector) for vector in rows.vectors()],
    "streamed": len({tuple(row.vector()) for row in streamed.values()}),
    "ranked": [each.index for each in ranked],
    "scores": [len(each.scores) for each in Client(given["grpc"]).score([("a", "b")], model=given["ranker"])],
    "text": [text.completion_tokens, text.finish_reason, bool(text.text)],
    "parts": bool("".join(parts)),
    "partly": [row.error is None for row in partly.rows],
    "models": sorted(model.name for model in Client(given["grpc"]).models()),
    "raised": raised,
}))
"""
AIO = """
async def main():
    async with AsyncClient(given["grpc"]) as client:
        rows, text = await asyncio.gather(
            client.embed(["who wrote hamlet"]),
            client.generate("once upon", model=given["generating"], max_tokens=5, ignore_eos=True),
        )
        streamed = [index async for index, _ in client.embed_stream(["a", "b", "c"])]
        stream = client.stream("once", model=given["generating"], max_tokens=5, ignore_eos=True)
        parts = [part.text async for part in stream]
        print(json.dumps([len(rows.vectors()), text.completion_tokens, sorted(streamed), bool("".join(parts))]))
asyncio.run(main())
"""
KAFKA = """
from tokenbatch_client.kafka import DeadLetter, KafkaClient
async def main():
    async with KafkaClient(given["kafka"]) as kafka:
        rows = {row.index: row.vector() async for row in kafka.submit([f"question {n}" for n in range(50)])}
        failed = [row.error.code async for row in kafka.submit([""])]
        print(json.dumps([sorted(rows) == list(range(50)), len({len(row) for row in rows.values()}), failed]))
asyncio.run(main())
"""

pytestmark = pytest.mark.timeout(600)  # what is downloaded the first time


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("client")
    wheels, environment = folder / "wheels", folder / "environment"
    uv("build", "--quiet", "--wheel", "--out-dir", str(wheels), str(ROOT / "client"))
    uv("venv", "--quiet", "--python", sys.executable, str(environment))
    uv("pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), *map(str, wheels.glob("*.whl")))
    return environment / "bin" / "python"


def uv(*arguments: str) -> str:
    done = subprocess.run([UV, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ran(python: Path, program: str, stack: Stack) -> Any:
    given = {"grpc": stack.grpc, "kafka": stack.kafka, "ranker": RANKING, "generating": GENERATING}
    done = subprocess.run(
        [python, "-c", READ + program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_wheel_brings_grpc_and_protobuf_and_nothing_else(python: Path) -> None:
    listed = json.loads(uv("pip", "list", "--python", str(python), "--format", "json"))
    assert {each["name"] for each in listed} <= BARE


def test_every_call_works_and_every_error_says_what_to_do(python: Path, stack: Stack) -> None:
    found = ran(python, CALLS, stack)
    raised = found.pop("raised")
    dimensions = found.pop("dimensions")
    assert len(dimensions) == 2
    assert len(set(dimensions)) == 1
    assert found == {
        "streamed": 100,
        "ranked": found["ranked"],
        "scores": [1],
        "text": [5, "length", True],
        "parts": True,
        "partly": [True, False],
        "models": found["models"],
    }
    assert sorted(found["ranked"]) == [0, 1, 2]
    assert found["ranked"][-1] == 2  # an empty document
    assert {RANKING, GENERATING} < set(found["models"])
    assert raised["empty"][:2] == ["InputError", "INVALID_ARGUMENT"]
    assert "input 1" in raised["empty"][2]
    assert raised["model"][:2] == ["NotServed", "NOT_FOUND"]
    assert "'interactive', 'default', 'background'" in raised["word"][2]
    assert "max_tokens" in raised["sampling"][2]
    assert raised["nowhere"][0] in {"Unavailable", "DeadlineExceeded"}


def test_the_calls_of_asyncio_do_the_same(python: Path, stack: Stack) -> None:
    assert ran(python, AIO, stack) == [1, 5, [0, 1, 2], True]


def test_records_get_their_rows_through_kafka(python: Path, stack: Stack) -> None:
    uv("pip", "install", "--quiet", "--python", str(python), "aiokafka")
    assert ran(python, KAFKA, stack) == [True, 1, ["INVALID_ARGUMENT"]]
