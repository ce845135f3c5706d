"""Which dead letters go back, and as what."""

from __future__ import annotations

import pytest

from aggregator.__main__ import main
from aggregator.errors import Code
from aggregator.sources.kafka.replies import DeadLetter
from aggregator.wings.redrive.command import known_code, moment
from aggregator.wings.redrive.dead_letters import Obstacle, PutBack, Wanted, put_back
from tests.support.no_real_time import WALL_S
from tests.support.records import FakeRecord, in_flight_of

SENT = [("content-type", b"text/plain"), ("kafka_correlationId", b"\xff"), ("dlt", b"not ours")]


def letter(*headers: tuple[str, bytes], code: Code = Code.INTERNAL, omit_value: bool = False) -> FakeRecord:
    """A letter as the aggregator writes it, of a record with these headers."""
    in_flight = in_flight_of(b"value", headers, topic="queries", key=b"k")
    written = DeadLetter(in_flight, code, "broken", attempts=2, omits_value=omit_value).record("g")
    return FakeRecord("queries-dlt", 0, 7, 1_700_000_000_000, written.key, written.value, written.headers)


def test_a_letter_becomes_what_was_sent_and_counts_how_often() -> None:
    expected = PutBack("queries", b"k", b"value", [*SENT, ("dlt-redrives", b"1")])
    assert put_back(letter(*SENT), Wanted(), "queries-dlt") == expected


def test_the_aggregator_carries_the_count_into_the_next_letter() -> None:
    redriven = put_back(letter(*SENT), Wanted(), "queries-dlt")
    assert isinstance(redriven, PutBack)
    again = put_back(letter(*redriven.headers), Wanted(), "queries-dlt")
    assert isinstance(again, PutBack)
    assert again.headers == [*SENT, ("dlt-redrives", b"2")]


@pytest.mark.parametrize("count", [b"3", b"4", b"-1", b"many", b"", b"9" * 5000])
def test_a_letter_that_was_put_back_too_often_stays(count: bytes) -> None:
    assert put_back(letter(("dlt-redrives", count)), Wanted(), "queries-dlt") is Obstacle.TOO_OFTEN


def test_a_letter_without_its_value_stays() -> None:
    assert put_back(letter(omit_value=True), Wanted(), "queries-dlt") is Obstacle.VALUE_OMITTED


def test_a_letter_goes_where_it_is_told_and_never_to_its_own_topic() -> None:
    other = put_back(letter(), Wanted(topic="other"), "queries-dlt")
    assert isinstance(other, PutBack)
    assert other.topic == "other"
    assert put_back(letter(), Wanted(), "queries") is Obstacle.NO_TOPIC
    assert put_back(FakeRecord("t", 0, 0, 0, None, b"", ()), Wanted(), "queries-dlt") is Obstacle.NO_TOPIC


@pytest.mark.parametrize(
    ("wanted", "included"),
    [
        (Wanted(), True),
        (Wanted(codes=frozenset({"INTERNAL", "DATA_LOSS"})), True),
        (Wanted(codes=frozenset({"DATA_LOSS"})), False),
        (Wanted(key=b"k"), True),
        (Wanted(key=b"other"), False),
        (Wanted(since_s=1_700_000_000.0), True),
        (Wanted(since_s=1_700_000_000.001), False),
        (Wanted(until_s=1_700_000_000.0), False),
    ],
)
def test_only_what_is_asked_for_goes(wanted: Wanted, *, included: bool) -> None:
    assert wanted.includes(letter()) is included


def test_a_time_is_iso_8601_or_so_long_ago() -> None:
    assert moment("2023-11-14T22:13:20") == moment("2023-11-14T23:13:20+01:00") == 1_700_000_000.0
    assert moment("2h") == pytest.approx(WALL_S - 7200.0, abs=1.0)
    with pytest.raises(ValueError, match="soon"):
        moment("soon")


def test_the_command_is_listed_by_the_aggregators_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (["--help"], "redrive"), (["redrive", "--help"], "--max-redrives"):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        assert told in capsys.readouterr().out


def test_a_file_of_settings_holds_before_and_after_the_commands_name(capsys: pytest.CaptureFixture[str]) -> None:
    redrive = ["redrive", "--from", "a-dlt"]
    for arguments in ["--config", "absent.yaml", *redrive], [*redrive, "--config", "absent.yaml"]:
        assert main(arguments) == 2
        assert "absent.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("given", ["DATA_LOSS", "data_loss", "Data-Loss"])
def test_an_error_code_is_known_in_any_case(given: str) -> None:
    assert known_code(given) == "DATA_LOSS"


@pytest.mark.parametrize("given", ["", "OK", "15", "DATALOSS"])
def test_a_code_that_no_dead_letter_can_have_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["redrive", "--from", "a-dlt", "--code", given])
    assert "is no error code: use CANCELLED, INVALID_ARGUMENT" in capsys.readouterr().err


def test_a_summary_that_cannot_be_written_is_known_before_anything_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENBATCH_AGGREGATOR_MODELS", '[{"name": "m", "servers": ["h:1"]}]')
    assert main(["redrive", "--from", "t-dlt", "--json", "/proc/none/summary.json"]) == 2
    assert "/proc/none/summary.json" in capsys.readouterr().err
