"""The bottleneck and the problems, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregator.observability.metrics import Totals
from aggregator.request.request import KAFKA, Backlog
from aggregator.wings.page.words import (
    Latency,
    Scaling,
    Severity,
    Work,
    back_pressure,
    bottleneck,
    other_problems,
    server_problems,
)


def scaling(required: float | None = 1.0, serving: int = 1, model: str = "m") -> Scaling:
    return Scaling(model, 0.0, 0.0, 1.0, 0.0, required, serving, 0)


IDLE = Work(0, 0, 0, saturated=0.0, paused=0.0, core=0.1)
SATURATED = replace(IDLE, saturated=0.9)
ON_TIME, LATE, NO_TARGET = Latency(0.2, late=False), Latency(0.2, late=True), Latency(None, late=False)


@pytest.mark.parametrize(
    ("work", "required", "said"),
    [
        (SATURATED, 3.2, "Model servers are saturated: 3 more would keep up with the load."),
        (SATURATED, 1.0, "Model servers are busy, and those that serve keep up with the load."),
        (SATURATED, None, "Model servers are busy, and those that serve keep up with the load."),
        (replace(IDLE, core=0.9), 1.0, "This aggregator's core is saturated"),
        (replace(IDLE, completing=900, computing=100), 1.0, "Replies wait for the broker's acknowledgement"),
        (replace(IDLE, completing=700, computing=300), 1.0, "Nothing is held up."),
        (replace(IDLE, paused=0.9), 1.0, "Intake waits"),
        (IDLE, 1.0, "Nothing is held up."),
        (IDLE, 1.2, "Nothing is held up; one model server is missing."),
    ],
)
def test_the_bottleneck_is_named_with_the_remedy(work: Work, required: float | None, said: str) -> None:
    assert bottleneck(work, [scaling(required)], NO_TARGET).startswith(said)


@pytest.mark.parametrize(
    ("latency", "said"),
    [
        (NO_TARGET, "Nothing is held up; 2 model servers are missing."),
        (ON_TIME, "Calls are on time; 2 model servers are missing."),
        (LATE, "Calls are late; 2 model servers are missing."),
    ],
)
def test_missing_servers_and_calls_on_time_are_one_diagnosis(latency: Latency, said: str) -> None:
    assert bottleneck(IDLE, [scaling(3.0)], latency) == said


@pytest.mark.parametrize(("pressed", "severity"), [(True, Severity.PROBLEM), (False, Severity.NOTICE)])
def test_missing_servers_are_a_problem_once_something_waits(pressed: bool, severity: Severity) -> None:
    (found,) = server_problems([], [scaling(2.0)], {}, pressed=pressed)
    assert (found.text, found.severity) == ("m requires 2 model servers and has 1.", severity)


def test_a_server_slower_than_it_measured_is_named() -> None:
    (found,) = server_problems([], [scaling()], {"a:1": 4.04}, pressed=False)
    assert found.text == "Model server a:1 computes 4.0 times as long as it measured at its start."


def test_without_a_server_the_waiting_requests_are_counted() -> None:
    found = server_problems(
        [("a:1", "m", "cannot be reached.")], [replace(scaling(serving=0), pending=1)], {}, pressed=False
    )
    assert [each.text for each in found] == [
        "m has no model server, and 1 request waits.",
        "Model server a:1 of m is not used: cannot be reached.",
    ]


def test_ordinary_back_pressure_is_no_problem() -> None:
    backlogs = [Backlog(KAFKA, "t", number, "m", 7, paused=number < 2) for number in range(8)]
    (found,) = back_pressure(backlogs)
    assert found.severity is Severity.NOTICE
    assert found.text == (
        "Kafka: read as fast as the queue empties (2 of 8 partitions wait). Nothing to do for a bulk job."
    )
    assert not list(back_pressure(backlogs[2:]))
    both = [Backlog("redis", "s", "redis", "m", 7, paused=True), backlogs[0], backlogs[5]]
    (found,) = back_pressure(both)
    assert found.text.startswith("Kafka and Redis: read as fast")


def test_of_several_models_the_one_that_lacks_most_servers_is_named() -> None:
    models = [scaling(2.0, model="small"), scaling(5.0, model="large")]
    said = bottleneck(SATURATED, models, NO_TARGET)
    assert said == "Model servers are saturated: 4 more would keep up with the load (large)."


def test_each_problem_is_a_sentence_with_its_count() -> None:
    recent = Totals(
        answered=0, failed=0, refused=1200, expired=3, coalesced=9, dead_letters=1, lost=2, ahead=5, commit_failures=4
    )
    found = list(
        other_problems(
            recent, LATE, away=["Kafka cannot be reached"], file_limit_warning="Few files", outranked={"b", "a"}
        )
    )
    assert [each.text for each in found] == [
        "Kafka cannot be reached.",
        "Urgent records of a, b wait behind less urgent ones of the same topic.",
        "Answers are later than 0.2 s, the target (sla.latency_s).",
        "2 records were lost in the last minute.",
        "1 dead letter was written in the last minute.",
        "1,200 calls were refused in the last minute.",
        "3 queries were too late to be answered in the last minute.",
        "4 commits were refused in the last minute.",
        "5 records were from the future in the last minute.",
        "Few files.",
    ]
