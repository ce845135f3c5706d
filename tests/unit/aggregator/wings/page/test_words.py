"""The bottleneck and the problems, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aggregator.observability.metrics import Totals
from aggregator.wings.page.words import Scaling, Work, bottleneck, other_problems


def scaling(required: float | None = 1.0, serving: int = 1, model: str = "m") -> Scaling:
    return Scaling(model, 0.0, 0.0, 1.0, 0.0, required, serving, 0)


IDLE = Work(0, 0, 0, saturated=0.0, paused=0.0, core=0.1)
SATURATED = replace(IDLE, saturated=0.9)


@pytest.mark.parametrize(
    ("work", "required", "said"),
    [
        (SATURATED, 3.2, "Model servers are saturated: 3 more would hold the target."),
        (SATURATED, 1.0, "Model servers are busy, and those that serve hold the target."),
        (SATURATED, None, "Model servers are busy, and those that serve hold the target."),
        (replace(IDLE, core=0.9), 1.0, "This aggregator's core is saturated"),
        (replace(IDLE, completing=900, computing=100), 1.0, "Replies wait for the broker's acknowledgement"),
        (replace(IDLE, completing=700, computing=300), 1.0, "Nothing is held up."),
        (replace(IDLE, paused=0.9), 1.0, "Intake is paused"),
        (IDLE, 1.0, "Nothing is held up."),
    ],
)
def test_the_bottleneck_is_named_with_the_remedy(work: Work, required: float | None, said: str) -> None:
    assert bottleneck(work, [scaling(required)]).startswith(said)


def test_of_several_models_the_one_that_lacks_most_servers_is_named() -> None:
    models = [scaling(2.0, model="small"), scaling(5.0, model="large")]
    said = bottleneck(SATURATED, models)
    assert said == "Model servers are saturated: 4 more would hold the target (large)."


def test_each_problem_is_a_sentence_with_its_count() -> None:
    recent = Totals(
        answered=0, failed=0, refused=1200, expired=3, coalesced=9, dead_letters=1, lost=2, ahead=5, commit_failures=4
    )
    found = list(
        other_problems(
            recent, 2, away=["Kafka cannot be reached"], slow=True, few_files="Few files", outranked={"b", "a"}
        )
    )
    assert [each.text for each in found] == [
        "Kafka cannot be reached.",
        "2 partitions are paused.",
        "Urgent records of a, b wait behind less urgent ones of the same topic.",
        "Answers are later than the latency target.",
        "2 records were lost in the last minute.",
        "1 dead letters came in the last minute.",
        "1,200 calls were refused in the last minute.",
        "3 queries expired in the last minute.",
        "4 commits failed in the last minute.",
        "5 records were from the future in the last minute.",
        "Few files.",
    ]
