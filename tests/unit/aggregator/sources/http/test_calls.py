"""The texts of a body are counted while it arrives: never more than it has, however it is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.http.calls import count_quotes
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
