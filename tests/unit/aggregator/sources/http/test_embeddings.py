"""The number of inputs of a large body is bounded before it is decoded, and no body that is allowed is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.sources.http.embeddings import check_size
from aggregator.sources.http.errors import FieldError

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
