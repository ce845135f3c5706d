"""The demand for servers that generate."""

from __future__ import annotations

from typing import Any

import pytest

from aggregator.request.request import Held
from aggregator.scheduler.work_item import Task
from aggregator.wings.generation.generation import Generation
from aggregator.wings.generation.kind import GENERATION
from aggregator.wings.scaler.reporting.meter import _RECENT_TOKENS, DemandMeter
from protos.generation.v1.generation_pb2 import Sampling
from tests.support.fake_source import any_request
from tests.support.faked_pipeline import MODEL
from tests.support.virtual_time import ManualClock, in_virtual_time
from tests.unit.aggregator.wings.generation.generators import faked_of, generated, server
from tests.unit.aggregator.wings.scaler.reporting.test_meter import _NOWHERE, report

TEXT: dict[str, Any] = {"kind": GENERATION, "details": Generation(Sampling())}


@in_virtual_time
async def test_servers_of_both_tasks_are_reported_once_and_memory_by_text_share() -> None:
    async with faked_of(server("s:1"), server("s:2")) as faked:
        await generated(faked)
        (replicas,) = (each.dispatcher.replicas for each in faked.embeds.revisions.values())
        (texts,) = faked.pipeline.models.find(MODEL, Task.GENERATE).revisions.values()
        told = report(faked).models[0]
        budgets = {name: replica.pod_step()[0] for name, replica in replicas.items()}
        assert {each.address: (each.token_budget, each.kv_tokens) for each in told.replicas} == {
            name: (budget, 4096) for name, budget in budgets.items()
        }
        meter = DemandMeter(faked.pipeline.models, clock=ManualClock(1000.0))
        assert meter.of(faked.model).kv_token_s_per_token == 0.0
        recent = int(_RECENT_TOKENS)
        for changes, tokens in (({}, recent), (TEXT, recent), (TEXT, recent // 2)):
            request = any_request("1", model=MODEL, **changes)
            request.hold(Held(faked.model.admission, *_NOWHERE), tokens)
            meter.counted(faked.model, [request])
            request.release()
        share = meter.of(faked.model).kv_token_s_per_token / texts.usage.kv_token_s_per_token
    assert share == pytest.approx(2 / 3)
