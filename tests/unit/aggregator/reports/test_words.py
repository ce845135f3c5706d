"""The bottleneck and the problems, in words."""

from __future__ import annotations

import pytest

from aggregator.observability.metrics import Totals
from aggregator.reports.stations import Shares, Station
from aggregator.reports.words import Scaling, bottleneck, other_problems


def scaling(required: float | None = 1.0, serving: int = 1, model: str = "m") -> Scaling:
    return Scaling(model, 0.0, 0.0, 1.0, 0.0, 30.0, 0.75, required, serving, 0)


def stations(**shares: tuple[float, float]) -> dict[Station, Shares]:
    return {station: Shares(*shares.get(station.name, (0.0, 0.0))) for station in Station}


@pytest.mark.parametrize(
    ("loop", "shares", "required", "said"),
    [
        (0.1, {"MODEL_SERVERS": (0.9, 0.0)}, 3.2, "Model servers are saturated: 3 more would hold the target."),
        (0.1, {"QUEUE": (0.0, 0.9)}, 1.0, "Model servers are busy, and those that serve hold the target."),
        (0.9, {"ADMIT": (0.6, 0.0)}, 1.0, "This aggregator's core is saturated"),
        (0.1, {"COMPLETE": (0.0, 0.9)}, 1.0, "Replies wait for the broker's acknowledgement"),
        (0.1, {"RECEIVE": (0.0, 0.9)}, 1.0, "Intake is paused"),
        (0.1, {"MODEL_SERVERS": (0.25, 0.0)}, 1.0, "Nothing is held up: model servers work 25 % of the time."),
        (0.1, {"MODEL_SERVERS": (0.9, 0.0)}, None, "Model servers are busy"),
    ],
)
def test_the_bottleneck_is_named_with_what_would_help(
    loop: float, shares: dict[str, tuple[float, float]], required: float | None, said: str
) -> None:
    assert bottleneck(loop, stations(**shares), [scaling(required)]).startswith(said)


def test_of_several_models_the_one_that_lacks_most_servers_is_named() -> None:
    models = [scaling(2.0, model="small"), scaling(5.0, model="large")]
    said = bottleneck(0.1, stations(QUEUE=(0.0, 1.0)), models)
    assert said == "Model servers are saturated: 4 more would hold the target (large)."


def test_each_problem_is_a_sentence_with_its_count() -> None:
    recent = Totals(
        answered=0, failed=0, refused=1200, expired=3, coalesced=9, dead_letters=1, lost=2, commit_failures=4
    )
    found = list(
        other_problems(recent, 2, away=["Kafka cannot be reached"], slow=True, clock_skew_s=-7.0, few_files="Few files")
    )
    assert [each.text for each in found] == [
        "Kafka cannot be reached.",
        "2 partitions are paused.",
        "Answers are later than the latency target.",
        "2 records were lost in the last minute.",
        "1 dead letters came in the last minute.",
        "1,200 calls were refused in the last minute.",
        "3 queries expired in the last minute.",
        "4 commits failed in the last minute.",
        "The clock differs from the records' clocks by -7 s.",
        "Few files.",
    ]
