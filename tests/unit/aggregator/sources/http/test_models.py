"""How models are listed over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from aggregator.model_server import Details, ServerDescription
from aggregator.scheduler.work_item import Task
from aggregator.sources.http.service import listed
from tests.support.fake_engine import description


class Generates(Details):
    """Of a server that generates."""

    task = Task.GENERATE


EMBEDS = replace(description(dimensions=96), max_input_tokens=63, matryoshka_dimensions=frozenset({64, 32}))
GENERATES = replace(EMBEDS, dimensions=0, max_input_tokens=64, details=Generates())


@dataclass
class Served:
    """A revision, as far as it is listed."""

    description: ServerDescription


@dataclass
class OneTask:
    """A model for one task."""

    revisions: dict[str, Any]
    name: str = "m"
    aliases: tuple[str, ...] = field(default=("a",))


def test_a_model_of_both_tasks_is_listed_once() -> None:
    models: list[Any] = [OneTask({"r1": Served(EMBEDS)}), OneTask({"r1": Served(GENERATES)})]
    for order in (models, models[::-1]):
        (shown,) = listed(order)
        assert (shown["id"], shown["revision"], sorted(shown["tasks"])) == ("m", "r1", ["embed", "generate"])
        assert (shown["dimensions"], shown["matryoshka_dimensions"], shown["max_model_len"]) == (96, [32, 64], 64)


def test_each_revision_of_a_canary_is_listed() -> None:
    models: list[Any] = [OneTask({"r1": Served(EMBEDS), "r2": Served(EMBEDS)}), OneTask({})]
    assert [(each["revision"], each["tasks"]) for each in listed(models)] == [("r1", ["embed"]), ("r2", ["embed"])]
