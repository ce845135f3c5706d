"""Vectors as each request asked for them: what is cut, what is normalised, and how close an encoding comes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.request.vector import CompletedBatch, EncodedRows, vector_bytes
from protos.embedding.v1 import embedding_pb2 as pb

ENCODINGS = pb.Encoding.values()[1:]


def batch(*rows: list[float]) -> CompletedBatch:
    return CompletedBatch("b", "m", "r", 0, np.array(rows, np.float32), 0.0, 0.0)


def rows(
    *vectors: list[float], dimensions: int = 0, encoding: int = pb.ENCODING_FLOAT32, normalize: bool = False
) -> EncodedRows:
    return batch(*vectors).rows(dimensions, encoding, normalize=normalize)


def decoded(encoded: EncodedRows, row: int, dtype: str) -> npt.NDArray[np.float64]:
    return np.frombuffer(encoded.row(row), dtype).astype(np.float64)


def test_vectors_go_out_as_the_model_gave_them_unless_asked_otherwise() -> None:
    encoded = rows([1.5, -2.0, 3.25], [0.1, 0.2, 0.3])
    assert (encoded.row_bytes, encoded.dimensions, encoded.scales) == (12, 3, None)
    assert decoded(encoded, 0, "<f4").tolist() == [1.5, -2.0, 3.25]
    assert decoded(encoded, 1, "<f4") == pytest.approx([0.1, 0.2, 0.3])
    assert encoded.scale(0) == 0.0


def test_fewer_dimensions_are_the_first_ones_normalised_after_the_cut() -> None:
    encoded = rows([3.0, 4.0, 100.0], [0.0, -2.0, 7.0], dimensions=2, normalize=True)
    assert (encoded.row_bytes, encoded.dimensions) == (8, 2)
    assert decoded(encoded, 0, "<f4") == pytest.approx([0.6, 0.8])
    assert decoded(encoded, 1, "<f4") == pytest.approx([0.0, -1.0])


def test_a_vector_of_zeros_stays_one() -> None:
    for encoding, dtype in ((pb.ENCODING_FLOAT32, "<f4"), (pb.ENCODING_FLOAT16, "<f2"), (pb.ENCODING_INT8, "i1")):
        encoded = rows([0.0, 0.0], encoding=encoding, normalize=True)
        assert decoded(encoded, 0, dtype).tolist() == [0.0, 0.0]


def test_each_int8_vector_has_its_own_scale_which_its_largest_value_fills() -> None:
    encoded = rows([2.0, -1.0], [-0.5, 0.25], encoding=pb.ENCODING_INT8)
    assert (encoded.row_bytes, encoded.dimensions) == (2, 2)
    assert [encoded.scale(row) for row in range(2)] == [2.0, 0.5]
    assert [decoded(encoded, row, "i1").tolist() for row in range(2)] == [[127, -64], [-127, 64]]


@given(st.lists(st.floats(-100.0, 100.0, width=32), min_size=1, max_size=40))
def test_int8_is_off_by_no_more_than_half_a_step(values: list[float]) -> None:
    encoded = rows(values, encoding=pb.ENCODING_INT8)
    back = decoded(encoded, 0, "i1") / 127.0 * encoded.scale(0)
    assert np.abs(back - np.array(values, np.float32)).max() <= encoded.scale(0) / 127.0 * 0.5001


def test_binary_is_a_bit_per_dimension_set_from_zero_up_padded_with_zeros() -> None:
    encoded = rows([0.5, -0.5, 0.0, -1.0, -1.0, -1.0, -1.0, 2.0, 3.0, -3.0], [-1.0] * 10, encoding=pb.ENCODING_BINARY)
    assert (encoded.row_bytes, encoded.dimensions, encoded.scales) == (2, 10, None)
    assert encoded.row(0) == bytes([0b10100001, 0b10000000])
    assert encoded.row(1) == bytes(2)


@pytest.mark.parametrize("dimensions", [1, 7, 8, 9, 384])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_a_vector_takes_is_known_before_it_is_made(encoding: int, dimensions: int) -> None:
    encoded = rows([1.0] * dimensions, encoding=encoding)
    assert vector_bytes(dimensions, encoding) == encoded.row_bytes == len(encoded.data)


def test_what_requests_ask_for_alike_is_made_once_and_apart_from_the_rest() -> None:
    completed = batch([3.0, 4.0, 0.0])
    asked = [(0, pb.ENCODING_FLOAT32, False), (2, pb.ENCODING_FLOAT32, False), (0, pb.ENCODING_INT8, False)]
    asked.append((0, pb.ENCODING_FLOAT32, True))
    made = [completed.rows(cut, encoding, normalize=normalize) for cut, encoding, normalize in asked]
    assert len({one.data for one in made}) == 4
    again = [completed.rows(cut, encoding, normalize=normalize) for cut, encoding, normalize in asked]
    assert all(one is another for one, another in zip(made, again, strict=True))


def test_the_models_own_vectors_are_left_as_they_are() -> None:
    completed = batch([3.0, 4.0])
    for encoding in ENCODINGS:
        completed.rows(1, encoding, normalize=True)
    assert completed.matrix.tolist() == [[3.0, 4.0]]
