"""What an upload may hold, and when its file goes."""

from __future__ import annotations

import asyncio

import pytest

from aggregator.sources.calls.load import RateLimit
from aggregator.wings.batches.objects import MOST_EXPIRES_AFTER_S, new_id
from aggregator.wings.batches.upload import FORM_BYTES, Upload, expiry
from k8s.pod.http.exchange import HttpError
from tests.unit.aggregator.wings.batches.test_desk import FOLDER, Office
from tests.unit.aggregator.wings.batches.test_turns import Sending

FORM = (
    b'--edge\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n'
    b'--edge\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
)
END = b"--edge--\r\n"


async def sent(pieces: list[bytes]) -> None:
    """Upload a form in these pieces, of a length that is not announced. Raises HttpError."""
    office, sending = Office(max_file_bytes=1000), Sending()
    upload = Upload(sending, office.desk, FOLDER, new_id("file-", 1.0), RateLimit(1e9))  # type: ignore[arg-type]
    for piece in pieces:
        sending.arrived_bytes += len(piece)
        upload.add(piece)
        await asyncio.sleep(0)
        upload.wait_s()
    await upload.stored()


async def test_a_form_may_be_larger_than_its_file_by_its_fields() -> None:
    await sent([FORM, END])
    await sent([FORM, END, b"\r\n" * 1000])


@pytest.mark.parametrize("endless", [b"--edge" + FORM.rpartition(b"--edge")[2], END])
async def test_an_upload_without_an_end_is_refused_whatever_it_repeats(endless: bytes) -> None:
    with pytest.raises(HttpError, match="the file has more than 1000 bytes"):
        await sent([FORM, *[endless] * (2 * FORM_BYTES // len(endless))])


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
