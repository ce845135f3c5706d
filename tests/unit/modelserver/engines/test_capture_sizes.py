"""The sizes of steps that CUDA graphs are captured for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from modelserver.engines.model_config import capture_sizes
from modelserver.wings.profile.saturation import sweep_tokens


def test_a_step_is_padded_by_half_at_most_and_the_largest_fills_it() -> None:
    sizes = capture_sizes(2048)
    assert (sizes[0], sizes[-1], len(sizes)) == (8, 2048, 17)
    assert all(larger <= 1.5 * size for size, larger in pairwise(sizes))


@pytest.mark.parametrize("step_tokens", [4096, 8192, 16384])
def test_the_profile_measures_each_of_them(step_tokens: int) -> None:
    sizes = capture_sizes(step_tokens)
    assert sizes[-1] == 4096
    assert set(sizes) <= set(sweep_tokens(8192, 8))


@pytest.mark.parametrize(("step_tokens", "sizes"), [(1, (1,)), (8, (8,)), (20, (8, 12, 16, 20))])
def test_a_small_step_has_few(step_tokens: int, sizes: tuple[int, ...]) -> None:
    assert capture_sizes(step_tokens) == sizes
