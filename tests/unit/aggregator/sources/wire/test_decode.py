"""What a message would cost to parse is read off its bytes, up to a bound and no further."""

from __future__ import annotations

import time

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from aggregator.errors import InvalidRequest
from aggregator.sources.wire.decode import MAX_TOKEN_IDS, SMALL_BYTES, check, head
from protos.embedding.v1 import embedding_pb2 as pb

FILLER = pb.EmbedRequest(tenant="t" * SMALL_BYTES).SerializeToString()  # so that no message is a small one
EMPTY_INPUT = b"\x22\x00"


def ids(*each: int) -> pb.Input:
    return pb.Input(token_ids=pb.TokenIds(ids=each))


@given(
    st.lists(
        st.one_of(
            st.builds(lambda text, count: pb.Input(text=text, token_count=count), st.text(), st.integers(0, 2**32 - 1)),
            st.lists(st.integers(0, 2**32 - 1), max_size=20).map(lambda values: ids(*values)),
            st.just(pb.Input()),
        ),
        max_size=8,
    ),
    st.text(max_size=10),
)
def test_a_request_passes_if_it_has_no_more_inputs_than_are_taken(inputs: list[pb.Input], name: str) -> None:
    data = pb.EmbedRequest(inputs=inputs, request_id=name, dimensions=64, normalize=False).SerializeToString() + FILLER
    check(data, max(1, len(inputs)))
    if inputs:
        with pytest.raises(InvalidRequest, match="inputs"):
            check(data, len(inputs) - 1)


@pytest.mark.real_time("processor time is what is promised: 0.2 s of this thread, where the whole takes seconds")
@pytest.mark.parametrize(
    "data",
    [
        EMPTY_INPUT * 2_000_000,
        pb.EmbedRequest(inputs=[pb.Input(text="a")] * 800_000).SerializeToString(),
        b"\x78\x01" * 2_000_000,
        b"\x22\x80\x80\x80\x02" + b"\x18\x01" * 2**21,
        b"\x22\x80\x80\x80\x02" + b"\x0a\x00" * 2**21,
        b"\x22\x80\x80\x80\x02" + b"\x12\x00" * 2**21,
    ],
    ids=["empty inputs", "short inputs", "unknown fields", "counts in one input", "texts in one", "ids in one"],
)
def test_what_repeats_without_end_is_refused_without_walking_to_its_end(data: bytes) -> None:
    started_s = time.thread_time()
    with pytest.raises(InvalidRequest):
        check(data, 1024)
    assert time.thread_time() - started_s < 0.2  # to its end it takes seconds


@pytest.mark.parametrize("each", [1, 300, 30_000, 2**32 - 1])
def test_token_ids_are_bounded_in_all_inputs_together(each: int) -> None:
    half = MAX_TOKEN_IDS // 2
    check(pb.EmbedRequest(inputs=[ids(*[each] * half)] * 2).SerializeToString(), 2)
    with pytest.raises(InvalidRequest, match="token ids"):
        check(pb.EmbedRequest(inputs=[ids(*[each] * half), ids(*[each] * (half + 1))]).SerializeToString(), 2)


def test_token_ids_that_are_not_packed_are_bounded_too() -> None:
    unpacked = b"\x08\x07" * 2**20  # 2 MiB
    with pytest.raises(InvalidRequest, match="token ids"):
        check(b"\x22\x85\x80\x80\x01" + b"\x12\x80\x80\x80\x01" + unpacked, 2)


@pytest.mark.parametrize("end", [b"\x07", b"\x0b\x0c", b"\x22\xff\xff\x7f", b"\x18" + b"\xff" * 11, b"\x0a"])
def test_what_is_no_message_is_undecodable(end: bytes) -> None:
    with pytest.raises(DecodeError):
        check(FILLER + end, 3)


def test_the_head_is_what_a_message_says_besides_its_inputs() -> None:
    before = pb.EmbedRequest(request_id="q", model="m", inputs=[pb.Input(text="who?")]).SerializeToString()
    after = pb.EmbedRequest(dimensions=3, tenant="t").SerializeToString()
    assert head(before + after) == pb.EmbedRequest(request_id="q", model="m", dimensions=3, tenant="t")
    assert head(before + b"\x22\x01\xff" + after) == head(before + after)  # whatever its inputs hold
    assert head(before + b"\x07" + after) == pb.EmbedRequest(request_id="q", model="m")


@pytest.mark.real_time("processor time is what is promised: 0.2 s of this thread, where the whole takes seconds")
def test_a_head_is_not_looked_for_to_the_end() -> None:
    started_s = time.thread_time()
    assert head(b"\x0a\x01q" + EMPTY_INPUT * 2_000_000) == pb.EmbedRequest(request_id="q")
    assert time.thread_time() - started_s < 0.2


@pytest.mark.parametrize("data", [b"\x0a\x01\xff", b"\xff", b"\x0a"])
def test_a_head_that_cannot_be_read_is_empty(data: bytes) -> None:
    assert head(data) == pb.EmbedRequest()


def test_no_more_than_32_kib_are_believed_without_being_walked_over() -> None:
    many = EMPTY_INPUT * 100
    for more, refused in ((0, False), (1, True)):
        name = pb.EmbedRequest(tenant="t" * (SMALL_BYTES - len(many) - 4 + more)).SerializeToString()
        assert len(many + name) == SMALL_BYTES + more
        if refused:
            with pytest.raises(InvalidRequest):
                check(many + name, 99)
        else:
            check(many + name, 99)


@pytest.mark.parametrize("per_input", [3, 4])
def test_each_input_may_say_what_it_is_and_a_little_more(per_input: int) -> None:
    one = b"\x22" + bytes([2 * per_input]) + b"\x18\x01" * per_input
    if per_input == 3:
        check(FILLER + one * 1000, 1000)
    else:
        with pytest.raises(InvalidRequest, match="repeats fields too often"):
            check(FILLER + one * 1000, 1000)


def test_as_many_fields_as_a_request_can_have_are_walked_over() -> None:
    check(FILLER + b"\x78\x01" * (4 * 2 + 64 - 1), 2)
    with pytest.raises(InvalidRequest, match="repeats fields too often"):
        check(FILLER + b"\x78\x01" * (4 * 2 + 64), 2)


def test_numbers_of_fixed_width_are_stepped_over_wherever_they_stand() -> None:
    odd = (b"\x79" + bytes(8) + b"\x7d" + bytes(4)) * 3
    check(odd + FILLER + odd, 1)
    check(FILLER + odd + b"\x79" + bytes(8), 1)
    with pytest.raises(DecodeError):
        check(FILLER + odd + b"\x79" + bytes(7), 1)
    with pytest.raises(DecodeError):
        check(FILLER + odd + b"\x7d" + bytes(3), 1)
    assert head(odd + pb.EmbedRequest(request_id="q").SerializeToString() + odd).request_id == "q"


def test_texts_are_not_counted_as_token_ids() -> None:
    check(pb.EmbedRequest(inputs=[pb.Input(text="a" * (MAX_TOKEN_IDS + 100))]).SerializeToString(), 1)
    check(pb.EmbedRequest(inputs=[pb.Input(text="a" * 40_000)] * 100).SerializeToString(), 100)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384])
@pytest.mark.parametrize("more", [b"", b"\x78\x01", b"\x78\x01" * 5])
def test_whatever_follows_a_text_in_its_input_is_counted(length: int, more: bytes) -> None:
    """A text by itself is recognized without being walked over; its input has 4 fields at most, as any other."""
    part = pb.Input(text="a" * length).SerializeToString() + more
    inputs = pb.EmbedRequest(inputs=[pb.Input()] * 300).SerializeToString()
    data = inputs.replace(b"\x22\x00", b"\x22" + _varint(len(part)) + part)
    data += b"\x1a" + _varint(SMALL_BYTES) + b"r" * SMALL_BYTES
    if len(more) > 8:
        with pytest.raises(InvalidRequest, match="fields too often"):
            check(data, 300)
    else:
        check(data, 300)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
