"""The size of an answer in vectors by type is known before it is computed."""

from __future__ import annotations

import pytest

from aggregator.wings.http_forms.cohere import VectorsByType
from tests.unit.aggregator.sources.test_answer_sizes import INPUTS, check

TYPES = ("float", "int8", "uint8", "binary", "ubinary", "base64")


@pytest.mark.parametrize("types", [(), *((name,) for name in TYPES), TYPES])
@pytest.mark.parametrize("version", [1, 2])
def test_each_type_of_vectors_is_counted_as_it_is_written(types: tuple[str, ...], version: int) -> None:
    check(VectorsByType("", types, ["a text"] * INPUTS, version))
