"""The layout of a step in a graph's buffer covers each row of the graph once, whatever the step leaves free."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelserver.engines.engine import IdArray
from modelserver.wings.direct.graphs.layout import Parts, Shape, shapes

SHAPES = shapes(16384, 512)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Shape, IdArray, IdArray]:
    """A shape, and the lengths and token types of a step that it takes."""
    shape = draw(st.sampled_from((*SHAPES[:5], Shape(64, 16, 10), Shape(10, 3, 4))))
    lengths = draw(st.lists(st.integers(1, shape.longest), min_size=1, max_size=shape.slots))
    while sum(lengths) > shape.tokens:
        lengths.pop()
    second = [draw(st.integers(0, length)) for length in lengths]
    return shape, np.array(lengths or [1], np.int32), np.array(second or [1], np.int32)


def laid_out(
    shape: Shape, lengths: IdArray, second: IdArray | None = None, fill: int = -7
) -> tuple[Parts[IdArray], IdArray]:
    """The parts of a buffer that held something else before, and the step's ids."""
    buffer, ids = np.full(shape.size, fill, np.int32), np.arange(1, int(lengths.sum()) + 1, dtype=np.int32)
    shape.lay_out(buffer, ids, lengths, second)
    return Parts(*(buffer[place] for place in shape.places)), ids


@given(steps())
def test_bounds_rise_end_at_the_tokens_and_cover_each_row_once(step: tuple[Shape, IdArray, IdArray]) -> None:
    shape, lengths, _ = step
    parts, _ = laid_out(shape, lengths)
    assert parts.bounds[0] == 0
    assert (np.diff(parts.bounds) == parts.lengths).all()
    assert (parts.lengths >= 0).all()
    assert parts.bounds[-1] == shape.tokens
    assert parts.lengths.max() <= shape.longest
    covered = [query for query, length in enumerate(parts.lengths) for _ in range(length)]
    assert parts.segments.tolist() == covered
    assert (parts.positions == np.arange(shape.tokens) - parts.bounds[parts.segments]).all()


@given(steps())
def test_the_steps_queries_come_first_and_read_their_own_tokens(step: tuple[Shape, IdArray, IdArray]) -> None:
    shape, lengths, second = step
    parts, ids = laid_out(shape, lengths, second)
    assert parts.lengths[: lengths.size].tolist() == lengths.tolist()
    assert parts.lengths[lengths.size : shape.slots].sum() == 0
    assert parts.token_ids.tolist() == [*ids, *[0] * (shape.tokens - ids.size)]
    first = np.cumsum(lengths) - lengths
    assert parts.first[: lengths.size].tolist() == first.tolist()
    assert (parts.first < shape.tokens).all()
    types = [int(place >= begin) for begin, length in zip(second, lengths, strict=True) for place in range(length)]
    assert parts.types.tolist() == [*types, *[0] * (shape.tokens - ids.size)]


@given(steps(), steps())
def test_nothing_of_the_step_before_is_left(
    one: tuple[Shape, IdArray, IdArray], other: tuple[Shape, IdArray, IdArray]
) -> None:
    shape, lengths, second = one
    clean, dirty = np.zeros(shape.size, np.int32), np.zeros(shape.size, np.int32)
    ids = np.ones(int(lengths.sum()), np.int32)
    if shape == other[0]:
        shape.lay_out(dirty, np.full(int(other[1].sum()), 9, np.int32), other[1], other[2])
    shape.lay_out(clean, ids, lengths, second)
    shape.lay_out(dirty, ids, lengths, second)
    assert (clean == dirty).all()


def test_the_parts_do_not_overlap_and_begin_where_kernels_read_them_whole() -> None:
    for shape in SHAPES:
        places = shape.places
        assert all(one.stop <= other.start for one, other in pairwise(places))
        assert all(place.start % 64 == 0 for place in places)
        assert shape.size == places[-1].stop


def test_shapes_are_powers_of_two_and_their_midpoints_from_64_to_8192() -> None:
    assert [shape.tokens for shape in SHAPES] == [
        *(64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
    ]
    assert {shape.longest for shape in SHAPES[2:]} == {128}
    assert SHAPES[0] == Shape(64, 16, 64)
    assert all(shape.queries <= 992 for shape in SHAPES)
    assert SHAPES[-1].slots == 992 - 64


@pytest.mark.parametrize("step_tokens", [50, 64, 100, 1000, 5000])
def test_no_graph_is_larger_than_a_step(step_tokens: int) -> None:
    found = shapes(step_tokens, 512)
    assert found[-1].tokens == step_tokens
    assert found[-1].takes(step_tokens, 1, min(step_tokens, 128)) is (step_tokens <= 128) or step_tokens > 128


def test_a_model_of_short_inputs_has_graphs_as_far_as_dummies_fit() -> None:
    found = shapes(16384, 4)
    assert found[-1].tokens == 3072
    assert all(shape.slots > 0 and shape.longest == 4 for shape in found)


@pytest.mark.parametrize(
    ("tokens", "queries", "longest", "taken"),
    [(64, 16, 64, True), (65, 1, 64, False), (64, 17, 4, False), (64, 1, 65, False), (1, 1, 1, True)],
)
def test_a_shape_takes_as_much_as_it_has_place_for(tokens: int, queries: int, longest: int, taken: bool) -> None:
    assert SHAPES[0].takes(tokens, queries, longest) is taken
