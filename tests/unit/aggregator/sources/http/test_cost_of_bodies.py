"""What a body costs the event loop: at most a few milliseconds, in proportion to its size; else it takes a thread."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial

import pytest

from aggregator.errors import TokenbatchError
from aggregator.request.request import Defaults
from aggregator.scheduler.work_item import Priority
from aggregator.slow_lane import TakesLong
from aggregator.sources.http.embeddings import EmbeddingsReader
from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body, takes_long
from aggregator.sources.wire.decode import SMALL_BYTES
from aggregator.wings.generation.forms import GenerationReader
from aggregator.wings.http_forms.cohere import read_embed
from aggregator.wings.http_forms.voyage import read_documents
from aggregator.wings.ranking.http import read_classify, read_rerank, read_score
from aggregator.wings.tokenize.bodies import DETOKENIZE, TOKENIZE
from tests.fuzz.campaign import corpus
from tests.support.fake_source import GRPC
from tests.support.http_bodies import AnyRevision
from tests.support.turns import TURN_S, least_s

pytestmark = pytest.mark.real_time("bounds the CPU time of this thread: of some tries, the least")

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE, max_inputs=2048)
READS: dict[str, Callable[[bytes, Defaults, str], object]] = {
    "embeddings": EmbeddingsReader(AnyRevision(), trusts_token_ids=True),
    "embed": partial(read_embed, version=1),
    "documents": read_documents,
    "rerank": partial(read_rerank, returns_documents=True),
    "score": read_score,
    "classify": read_classify,
    "completion": GenerationReader(AnyRevision(), trusts_token_ids=True).completion,
    "chat": GenerationReader(AnyRevision(), trusts_token_ids=True).chat,
    "tokenize": lambda data, *_: decode_body(TOKENIZE, data),
    "detokenize": lambda data, *_: decode_body(DETOKENIZE, data),
}
EVERY_FORM = (
    b'"input":"a","messages":[{"role":"user","content":"x"}],"prompt":"p","texts":["a"],"query":"q",'
    b'"documents":["d"],"inputs":[["a"]],"tokens":[1],'
)
HALF = rb'"\ud800"'
SIZES = [1 << power for power in range(10, SMALL_BYTES.bit_length())]
DEEP = 900  # the deepest that the decoders read

Body = Callable[[int], bytes]


def filled(begin: bytes, each: bytes, end: bytes) -> Body:
    """A body that repeats `each` up to a size."""
    return lambda size: begin + each * ((size - len(begin) - len(end)) // len(each)) + end


def numbered(begin: bytes, each: bytes, end: bytes) -> Body:
    """A body of members whose names are numbers, up to a size."""
    return lambda size: begin + b",".join(each % number for number in range((size - 400) // (len(each) + 4))) + end


BODIES: dict[str, Body] = {
    "half a character in nested lists": filled(b'{"input":' + b"[" * DEEP, b'"",', HALF + b"]" * DEEP + b"}"),
    "half a character behind many texts": filled(b'{"input":[', b'"",', HALF + b"]}"),
    "half a character behind letters": filled(b'{"input":["', "é".encode(), b'",' + HALF + b"]}"),
    "half a character behind objects": filled(b'{"input":[', b'{"a":0},', HALF + b"]}"),
    "half a character behind names": numbered(b'{"input":{', b'"%x":0', b',"z":' + HALF + b"}}"),
    "empty objects": filled(b'{"x":[', b"{},", b"{}]}"),
    "objects of nothing": filled(b'{"x":[', b'{"a":null},', b"{}]}"),
    "names of nothing": numbered(b"{", b'"%x":null', b"}"),
    "names within": numbered(b"{" + EVERY_FORM + b'"x":[{', b'"%x":[]', b"}]}"),
    "nested objects": filled(b"{" + EVERY_FORM + b'"x":' + b'{"a":' * DEEP, b" ", b"{}" + b"}" * DEEP + b"}"),
    "messages of nothing": filled(b'{"messages":[', b'{"role":"user","content":null},', b'{"role":"user"}],"z":1}'),
    "parts of a message": filled(
        b'{"messages":[{"role":"user","content":[', b'{"type":"text","text":"x"},', b'{"type":"text","text":"x"}]}]}'
    ),
    "numbers": filled(b"{" + EVERY_FORM + b'"z":[', b"1,", b"1]}"),
    "long numbers": filled(b"{" + EVERY_FORM + b'"z":[', b"1e9,", b"1]}"),
    "input texts": filled(b'{"input":[', b'"a",', b'"a"]}'),
    "input ids": filled(b'{"input":[', b"1,", b"1]}"),
    "lists of ids": filled(b'{"input":[', b"[1],", b"[1]]}"),
    "texts": filled(b'{"texts":[', b'"a",', b'"a"]}'),
    "inputs": filled(b'{"inputs":[', b'["a"],', b'["a"]]}'),
    "documents": filled(b'{"query":"q","documents":[', b'"a",', b'"a"]}'),
    "pairs": filled(b'{"text_1":"q","text_2":[', b'"a",', b'"a"]}'),
    "prompt": filled(b'{"prompt":[', b"1,", b"1]}"),
    "stop": filled(b'{"prompt":"a","stop":[', b'"a",', b'"a"]}'),
    "biases": numbered(b'{"prompt":"a","logit_bias":{', b'"%d":1', b"}}"),
    "tokens": filled(b'{"tokens":[', b"1,", b"1]}"),
    "a template's arguments": filled(
        b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":[', b"[],", b"[]]}}"
    ),
    "blanks": filled(b"{", b" ", b"}"),
    "brackets": filled(b"", b"[", b""),
}


@pytest.fixture(autouse=True)
def without_collections() -> Generator[None]:
    """Of garbage: their cost is of all objects there are."""
    gc.disable()
    yield
    gc.enable()


def cost_s(
    read: Callable[[bytes, Defaults, str], object], body: bytes, tries: int = 10, *, enough_s: float = 0.0
) -> float:
    """CPU time of this thread; the least of some tries."""

    def once() -> float:
        began_s = time.thread_time()
        with suppress(TokenbatchError, TakesLong):
            read(body, DEFAULTS, "id")
        return time.thread_time() - began_s

    return least_s(once, tries, enough_s=enough_s)


@pytest.mark.parametrize("name", BODIES)
async def test_no_body_that_is_read_on_the_loop_holds_it_for_a_turn(name: str) -> None:
    for form, read in READS.items():
        bodies = [body for body in map(BODIES[name], SIZES) if not takes_long(body)]
        cost = {len(body): cost_s(read, body, enough_s=TURN_S) for body in bodies}
        assert max(cost.values(), default=0.0) < TURN_S, (form, cost)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_costs_no_more_a_byte_when_it_is_larger(name: str) -> None:
    """Eight times the size, on whatever thread: a cost that grows with its square would be 64 times as large."""
    small, large = BODIES[name](SMALL_BYTES), BODIES[name](8 * SMALL_BYTES)
    for form, read in READS.items():
        assert cost_s(read, large, 2) < 24 * cost_s(read, small, 2) + TURN_S, form


@pytest.mark.parametrize("name", ["http_embeddings", "http_cohere", "http_documents", "http_scores", "http_generation"])
def test_no_body_that_fuzzing_found_holds_the_loop_for_a_turn(name: str) -> None:
    for body in corpus(name):
        for form, read in READS.items():
            assert cost_s(read, body, enough_s=TURN_S) < TURN_S, (form, body)


def test_the_first_refusal_of_a_form_costs_no_more_than_the_others() -> None:
    for form, read in READS.items():
        assert cost_s(read, b"{}", 20) < 0.0005, form


async def test_a_long_body_with_a_fault_leaves_the_loop() -> None:
    assert takes_long(BODIES["empty objects"](4096))
    for body in (BODIES["names of nothing"], BODIES["half a character behind many texts"]):
        with pytest.raises(TakesLong):
            embeddings(body(4096))
        with pytest.raises(FieldError):
            embeddings(body(1024))


def test_a_long_body_with_a_fault_is_refused_on_a_thread() -> None:
    with pytest.raises(FieldError, match="half a character"):
        embeddings(BODIES["half a character behind many texts"](4096))


def embeddings(body: bytes) -> None:
    READS["embeddings"](body, DEFAULTS, "id")
