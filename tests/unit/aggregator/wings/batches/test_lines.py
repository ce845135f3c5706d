"""What a file of requests must be, and how it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.wings.batches.lines import MAX_LINE_BYTES, Validator, body_of, decoded, lines_of
from aggregator.wings.batches.objects import Plan, Problem

URL = "/v1/embeddings"


def line(custom_id: str, body: object = None, **changes: Any) -> bytes:
    whole = {"custom_id": custom_id, "method": "POST", "url": URL, "body": body or {"input": "a"}, **changes}
    return json.dumps(whole).encode()


def validated(data: bytes, *, piece: int = 1 << 20, most: int = 1000, **params: Any) -> Plan | tuple[Problem, ...]:
    validator = Validator(URL, params, max_lines=most, chunk_inputs=4, chunk_bytes=1000)
    for at in range(0, len(data), piece):
        validator.add(data[at : at + piece])
    return validator.end(5.0)


def codes(data: bytes, **options: Any) -> list[tuple[str, int | None]]:
    found = validated(data, **options)
    assert not isinstance(found, Plan)
    return [(each.code, each.line) for each in found]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 400),
    st.booleans(),
)
def test_chunks_hold_every_line_once_and_in_order(sizes: list[tuple[int, bool]], piece: int, ends: bool) -> None:
    lines = [
        line(f"l{place}", {"input": ["x"] * inputs}) + (b"\r\n \n" if blank else b"\n")
        for place, (inputs, blank) in enumerate(sizes)
    ]
    data = b"".join(lines) if ends else b"".join(lines).rstrip()
    plan = validated(data, piece=piece)
    assert isinstance(plan, Plan)
    found = [
        (decoded(raw).custom_id, sum(1 for _ in lines_of(data[cut.start : cut.start + cut.length])) == cut.lines)
        for cut in plan.chunks
        for raw in lines_of(data[cut.start : cut.start + cut.length])
    ]
    assert found == [(f"l{place}", True) for place in range(len(sizes))]
    assert plan.lines == len(sizes)


def test_a_chunk_holds_no_more_inputs_and_bytes_than_it_may() -> None:
    data = b"\n".join(line(f"l{place}", {"input": ["x", "y"]}) for place in range(5))
    plan = validated(data)
    assert isinstance(plan, Plan)
    assert [cut.lines for cut in plan.chunks] == [2, 2, 1]
    plan = validated(b"\n".join(line(f"l{place}", {"input": "x" * 600}) for place in range(3)))
    assert isinstance(plan, Plan)
    assert [cut.lines for cut in plan.chunks] == [1, 1, 1]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ({"input": [5, 6, 7, 8, 9]}, 4),  # the token ids of one input
        ({"input": [[5, 6], [7]]}, 2),
        ({"inputs": [["a", "b"], ["c", "d"]]}, 1),
        ({"query": "q", "documents": ["a", "b"]}, 2),
        ({"input": 7}, 4),
    ],
)
def test_inputs_are_counted_by_the_form_of_a_body(body: object, lines: int) -> None:
    plan = validated(b"\n".join(line(f"l{place}", body) for place in range(8)))
    assert isinstance(plan, Plan)
    assert plan.chunks[0].lines == lines


def test_faults_have_their_code_and_their_line() -> None:
    data = b"\n".join(
        [
            line("a"),
            b"{no json",
            line("a"),
            line("b", url="/v1/rerank"),
            line("c", {"model": "m"}),
            line("d", {"model": "n"}),
            line("e", method="GET"),
            line(""),
            b'{"custom_id": "f"}',
        ]
    )
    assert codes(data) == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("url_mismatch", 4),
        ("model_mismatch", 6),
        ("invalid_method", 7),
        ("invalid_custom_id", 8),
        ("invalid_json_line", 9),
    ]


def test_an_empty_file_is_refused() -> None:
    assert codes(b"") == codes(b"\n \r\n") == [("empty_file", None)]


def test_a_file_with_too_many_requests_is_refused() -> None:
    assert codes(b"\n".join(line(f"l{place}") for place in range(4)), most=3) == [("too_many_tasks", None)]


def test_the_first_hundred_faults_are_told() -> None:
    validator = Validator(URL, {}, max_lines=1000, chunk_inputs=4, chunk_bytes=1000)
    validator.add(b"x\n" * 500)
    assert validator.is_over
    found = validator.end(0.0)
    assert not isinstance(found, Plan)
    assert len(found) == 100


def test_a_line_without_an_end_is_not_kept() -> None:
    validator = Validator(URL, {}, max_lines=10, chunk_inputs=4, chunk_bytes=1000)
    for _ in range(2 * MAX_LINE_BYTES // 65536 + 1):
        validator.add(b"x" * 65536)
        assert len(validator._tail) <= MAX_LINE_BYTES  # noqa: SLF001
    found = validator.end(0.0)
    assert not isinstance(found, Plan)
    assert {each.code for each in found} == {"invalid_json_line"}


@pytest.mark.parametrize("piece", [65536, 1 << 20, 1 << 30])
@pytest.mark.parametrize("filler", [b"x", b" "])
def test_a_line_that_is_too_long_is_one_bad_line(piece: int, filler: bytes) -> None:
    long = filler * (2 * MAX_LINE_BYTES + 12345) + line("hidden")
    data = b"\n".join([line("a"), long, line("b"), b"{no json", line("c"), long])
    assert codes(data, piece=piece) == [("invalid_json_line", 2), ("invalid_json_line", 4), ("invalid_json_line", 6)]


def test_lines_of_voyage_take_endpoint_and_model_from_their_batch() -> None:
    data = b'\xef\xbb\xbf{"custom_id": "a", "body": {"input": "x"}}\n{"custom_id": "b", "body": {"input": "y"}}'
    plan = validated(data, model="m")
    assert isinstance(plan, Plan)
    assert (plan.model, plan.lines) == ("m", 2)


def test_a_line_has_the_fields_of_its_batch_that_it_lacks() -> None:
    body = body_of(decoded(line("a", {"input": "x", "dimensions": 4})), {"model": "m", "dimensions": 8})
    assert json.loads(body) == {"input": "x", "model": "m", "dimensions": 4}
    assert body_of(decoded(line("a", ["x"])), {"model": "m"}) == b'["x"]'
    no_json = b'{"inp\xff":"x"}'
    assert body_of(decoded(b'{"custom_id":"a","body":%b}' % no_json), {"model": "m"}) == no_json  # the door refuses it


def test_a_long_body_is_a_chunk_of_its_own_and_its_model_counts() -> None:
    long = line("l", {"model": "m", "input": "a" * 70_000})
    validator = Validator(URL, {}, max_lines=10, chunk_inputs=4, chunk_bytes=1 << 20)
    validator.add(b"\n".join([line("a"), long, line("b")]))
    plan = validator.end(5.0)
    assert isinstance(plan, Plan)
    assert [each.lines for each in plan.chunks] == [1, 1, 1]
    assert codes(b"\n".join([long, line("x", {"model": "n", "input": "a"})])) == [("model_mismatch", 2)]


def test_empty_lines_count_in_the_number_of_a_fault() -> None:
    assert codes(b"\n\n" + line("a") + b"\n\nno request") == [("invalid_json_line", 5)]
