"""What is asked of a batch, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aggregator.sources.http.errors import FieldError
from aggregator.sources.http.json_body import decode_body
from aggregator.wings.batches.objects import MOST_EXPIRES_AFTER_S
from aggregator.wings.batches.routes import BatchBody, Query

ASKED = {"input_file_id": "file-1", "endpoint": "/v1/embeddings"}


def read(**changes: Any) -> BatchBody:
    return decode_body(msgspec.json.Decoder(BatchBody), msgspec.json.encode({**ASKED, **changes}))


@pytest.mark.parametrize("seconds", [0, MOST_EXPIRES_AFTER_S + 1, 10**18])
def test_outputs_expire_within_ten_years(seconds: int) -> None:
    asked = read(output_expires_after={"anchor": "created_at", "seconds": MOST_EXPIRES_AFTER_S})
    assert asked.output_expires_after is not None
    with pytest.raises(FieldError, match=f"a whole number from 1 to {MOST_EXPIRES_AFTER_S}"):
        read(output_expires_after={"anchor": "created_at", "seconds": seconds})


def test_metadata_that_is_no_text_is_refused_in_words() -> None:
    with pytest.raises(FieldError, match=r"metadata\[\.\.\.\]: expected a text, got a whole number"):
        read(metadata={"a": 5})


class Asked:
    """A call with this number as its limit."""

    def __init__(self, limit: str) -> None:
        self.url = f"/v1/files?limit={limit}".encode()


def test_a_limit_is_a_number_of_a_page() -> None:
    read = [Query(Asked(limit)).number("limit", 20, 100) for limit in ("", "1", "100")]  # type: ignore[arg-type]
    assert read == [20, 1, 100]


@pytest.mark.parametrize("limit", ["0", "101", "-1", "1.5", "x", "000000001000", "1" * 5000])
def test_a_limit_that_is_none_is_refused_whatever_its_length(limit: str) -> None:
    with pytest.raises(FieldError, match="limit: expected a whole number from 1 to 100"):
        Query(Asked(limit)).number("limit", 20, 100)  # type: ignore[arg-type]
