"""What a server that ranks or classifies says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aggregator.model_server import differences
from aggregator.replicas.answers import BadDescription
from aggregator.scheduler.work_item import Task
from aggregator.wings.ranking.scoring import PairTemplate
from protos.modelserver.v1 import modelserver_pb2 as pb
from tests.support.fake_model_server import describe_response
from tests.unit.aggregator.replicas.test_answers import checked


def test_a_server_that_ranks_or_classifies_scores() -> None:
    ranks = checked(describe_response(task="rank", dimensions=1, matryoshka_dimensions=[]))
    assert (ranks.by_task, ranks.kind, ranks.details) == ({Task.SCORE: ranks}, "rank", PairTemplate())
    said = describe_response(task="classify", dimensions=2, matryoshka_dimensions=[], labels=["good", "bad"])
    said.pair_template.token_types = True
    classifies = checked(said)
    assert (classifies.task, classifies.kind, classifies.labels) == (Task.SCORE, "classify", ("good", "bad"))
    assert classifies.details == PairTemplate(token_types=True)
    assert differences(ranks, replace(ranks, details=PairTemplate(token_types=True)))
    assert differences(classifies, replace(classifies, labels=("bad", "good")))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"labels": ["good"], "dimensions": 2}, "names 1 labels for 2 scores"),
        ({"pair_template": pb.PairTemplate(text="{query}")}, "does not hold {query} and {document} once each"),
        ({"pair_template": pb.PairTemplate(text="{query}{document}{query}")}, "once each"),
    ],
)
def test_a_description_of_scores_that_cannot_be_right_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(BadDescription) as refused:
        checked(describe_response(task="rank", matryoshka_dimensions=[], **changes))
    assert told in str(refused.value)
