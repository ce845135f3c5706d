"""All inputs of an eager step reach a GPU by one copy, as they were."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelserver.wings.direct.copies import by_one_copy

pytestmark = pytest.mark.vllm
POISON = 2**30

PARTS = st.lists(
    st.one_of(
        st.none(),
        st.tuples(
            st.lists(st.integers(-(2**31), 2**31 - 1), max_size=130), st.sampled_from((torch.int32, torch.int64))
        ).map(lambda drawn: torch.tensor(drawn[0], dtype=drawn[1])),
    ),
    min_size=1,
    max_size=10,
)


@given(PARTS)
def test_parts_of_any_sizes_arrive_as_they_were_by_one_copy(parts: list[torch.Tensor | None]) -> None:
    copies: list[torch.Tensor] = []

    def copy(buffer: torch.Tensor) -> torch.Tensor:
        copies.append(buffer.clone())
        buffer.fill_(POISON)  # what arrives is the copy's
        return copies[-1]

    found = by_one_copy(parts, lambda size: torch.full((size,), POISON, dtype=torch.int32), copy)
    assert len(copies) == 1
    for part, there in zip(parts, found, strict=True):
        assert (part is None) == (there is None)
        if part is not None and there is not None:
            assert there.dtype == part.dtype
            assert torch.equal(there, part)
            assert there.storage_offset() * there.element_size() % 256 == 0
