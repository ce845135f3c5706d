"""What strangers sent to stop the service, too large to search from: built here, and given to the decoders anew."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from aggregator.errors import InvalidRequest
from aggregator.settings.aggregator import KafkaSettings
from aggregator.sources import parsing as wire_scan
from aggregator.sources.kafka.codec import Refused, decode, intakes
from protos.embedding.v1 import embedding_pb2 as pb
from tests.support.fake_source import KAFKA
from tests.support.records import in_flight_of

_INTAKE = intakes(KafkaSettings(), KAFKA, "m")["embed.requests.v1"]
_JSON = [("content-type", b"application/json")]
_LONGEST_S = 2.0


def of_one_text(text: str, **fields: Any) -> bytes:
    return pb.EmbedRequest(inputs=[pb.Input(text=text)], **fields).SerializeToString()


def ids(count: int) -> bytes:
    return pb.EmbedRequest(inputs=[pb.Input(token_ids=pb.TokenIds(ids=[1] * count))]).SerializeToString()


REFUSED: dict[str, Callable[[], bytes]] = {
    "4 MiB of empty inputs": lambda: b"\x22\x00" * 2_097_142,
    "838,850 inputs of one letter": lambda: b"\x22\x03\x0a\x01a" * 838_850,
    "4 million token ids": lambda: ids(4_194_204),
    "2 million unknown fields": lambda: b"\x78\x01" * 2_000_000 + of_one_text("a"),
    "2 million texts of one input": lambda: b"\x22\x80\x80\x80\x02" + b"\x0a\x00" * 2**21,
}
REFUSED_JSON: dict[str, Callable[[], bytes]] = {
    "65,000 inputs": lambda: json.dumps({"inputs": [{"text": "a"}] * 65_000}).encode(),
    "lists in lists": lambda: b'{"inputs": ' + b"[" * 900_000,
    "a number of a million digits": lambda: b'{"dimensions": ' + b"9" * 1_000_000 + b"}",
}
TAKEN: dict[str, Callable[[], bytes]] = {
    "a model's name of 100 kB": lambda: of_one_text("a", model="m" * 100_000),
    "a text of 1 MB": lambda: of_one_text("word " * 200_000, truncate=pb.TRUNCATE_END),
    "a value of 16 KiB": lambda: of_one_text("a" * 16_384),
}
HEADERS: dict[str, Any] = {"no header": (), "a null content-type": [("content-type", None)]}


def is_refused(value: bytes, headers: Sequence[tuple[str, bytes]] = ()) -> bool:
    """Whether a record with this value is, within the time that one may take."""
    began_s = time.process_time()
    taken = decode(in_flight_of(value, headers), _INTAKE, received_s=0.0, wall_s=1.7e9)
    assert time.process_time() - began_s < _LONGEST_S
    return isinstance(taken, Refused)


@pytest.mark.parametrize("build", REFUSED.values(), ids=REFUSED)
def test_a_message_that_holds_too_much_is_refused_before_it_is_parsed(build: Callable[[], bytes]) -> None:
    data = build()
    with pytest.raises(InvalidRequest):
        wire_scan.check(data, 1024)
    assert is_refused(data)


@pytest.mark.parametrize("build", REFUSED_JSON.values(), ids=REFUSED_JSON)
def test_json_that_holds_too_much_is_refused(build: Callable[[], bytes]) -> None:
    assert is_refused(build(), _JSON)


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("build", TAKEN.values(), ids=TAKEN)
def test_what_is_only_large_is_taken(build: Callable[[], bytes], headers: Any) -> None:
    assert not is_refused(build(), headers)
