"""Every decoder of input that is not ours to trust, by the name it is fuzzed under."""

from __future__ import annotations

from tests.fuzz import (
    file_targets,
    http_targets,
    kafka_targets,
    server_targets,
)
from tests.fuzz.aggregator.wings.authentication import credential_targets
from tests.fuzz.aggregator.wings.generation import http_targets as generation_http_targets
from tests.fuzz.aggregator.wings.generation import targets as generation_targets
from tests.fuzz.aggregator.wings.http_forms import form_targets
from tests.fuzz.aggregator.wings.ranking import targets as ranking_targets
from tests.fuzz.aggregator.wings.undecodable import batch_targets
from tests.fuzz.modelserver.wings.profile import profile_targets
from tests.fuzz.target import Target

_MODULES = [
    form_targets,
    kafka_targets,
    batch_targets,
    server_targets,
    credential_targets,
    file_targets,
    profile_targets,
    http_targets,
    generation_targets,
    generation_http_targets,
    ranking_targets,
]
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
_ALL = tuple(TARGETS.values())


def _check_any(data: bytes) -> None:
    _ALL[(data[0] if data else 0) % len(_ALL)].check(data[1:])


MIXED = Target("mixed", _check_any)
"""All of them in one process, which starts once; the first byte says which. For a short run."""
