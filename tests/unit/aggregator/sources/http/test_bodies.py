"""A body is bounded while it arrives and before it is decoded, and none that is allowed is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.http.calls import count_quotes
from aggregator.sources.http.embeddings import check_size
from aggregator.sources.http.errors import FieldError


def counted(body: bytes, size: int) -> int:
    """The quotes of a body that arrives in parts of this size."""
    data, found = bytearray(), 0
    for start in range(0, len(body), size):
        part = body[start : start + size]
        data += part
        found = count_quotes(data, part, found)
    return found


@given(texts=st.lists(st.text(alphabet='a"\\\\[],: é')), size=st.integers(1, 40), escapes=st.booleans())
def test_no_more_are_counted_than_there_are_and_all_without_backslashes(
    texts: list[str], size: int, escapes: bool
) -> None:
    found = counted(json.dumps(texts, ensure_ascii=escapes).encode(), size)
    assert found <= 2 * len(texts)
    if not any("\\" in text for text in texts):
        assert found == 2 * len(texts)


@pytest.mark.parametrize("size", [100, 65_536, 10**7])
def test_too_many_are_refused(size: int) -> None:
    assert counted(json.dumps(["a"] * 16_384).encode(), size) == 2 * 16_384
    with pytest.raises(FieldError, match="more than 16384 texts and names"):
        counted(json.dumps(["a"] * 16_385).encode(), size)


TEXTS = st.lists(st.text(alphabet='a"\\\\[],: é'), min_size=1)
IDS = st.lists(st.lists(st.integers(0, 30_000)), min_size=1)


@given(inputs=TEXTS | IDS, escapes=st.booleans())
def test_a_list_of_as_many_inputs_as_are_taken_passes(inputs: list[object], escapes: bool) -> None:
    check_size(json.dumps(inputs, ensure_ascii=escapes).encode(), len(inputs))


@given(inputs=TEXTS | IDS, escapes=st.booleans())
def test_one_of_more_than_twice_as_many_is_refused(inputs: list[object], escapes: bool) -> None:
    raw = json.dumps(inputs * 3, ensure_ascii=escapes).encode()
    with pytest.raises(FieldError, match=f"at most {len(inputs)} are taken"):
        check_size(raw, len(inputs))
