"""When an uploaded file goes."""

from __future__ import annotations

import pytest

from aggregator.wings.batches.objects import MOST_EXPIRES_AFTER_S
from aggregator.wings.batches.upload import expiry
from k8s.pod.http.exchange import HttpError


def asked(seconds: str, anchor: str = "created_at") -> float:
    return expiry({"expires_after[anchor]": anchor, "expires_after[seconds]": seconds}, 1000.0)


def test_a_file_goes_so_many_seconds_after_it_came() -> None:
    assert (asked("60"), asked(str(MOST_EXPIRES_AFTER_S))) == (1060.0, 1000.0 + MOST_EXPIRES_AFTER_S)
    assert expiry({"purpose": "batch"}, 1000.0) == 0.0


@pytest.mark.parametrize("seconds", ["", "0", "-1", "1.5", "x", str(MOST_EXPIRES_AFTER_S + 1), "1" + "0" * 400])
def test_seconds_that_are_no_time_are_refused(seconds: str) -> None:
    with pytest.raises(HttpError, match=f"seconds from 1 to {MOST_EXPIRES_AFTER_S}"):
        asked(seconds)
    with pytest.raises(HttpError):
        asked("60", anchor="now")
