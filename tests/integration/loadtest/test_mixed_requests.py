"""The requests of the benchmark of mixed steps, to real model servers with a synthetic engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from loadtest.lab.bench.mixed.requests import Asked, Clients, Lengths, Task
from loadtest.stack.errors import StackError
from loadtest.stack.service import ModelServer, without_kafka

LENGTHS = Lengths((32, 128), (2, 8))
SYNTHETIC = {
    "ENGINE__KIND": "synthetic",
    "PROFILE__ENABLED": "false",
    "SYNTHETIC__FIXED_S": "0.001",
    "MODEL__TASK": "both",
}


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """Of an aggregator before two servers for both tasks."""
    folder = tmp_path_factory.mktemp("servers")
    with (
        ModelServer(folder / "one.log", settings=SYNTHETIC) as one,
        ModelServer(folder / "other.log", settings=SYNTHETIC) as other,
    ):
        servers = [one.address, other.address]
        with without_kafka(folder / "aggregator.log", model=one.model, servers=servers) as front:
            yield Clients(front.address, dict.fromkeys(Task, one.model), [one.pid, other.pid])


def test_every_request_is_answered_once_and_every_token_is_noted(clients: Clients) -> None:
    asked = list(islice(LENGTHS.drawn(0.5, 1), 60))
    heard = clients.all_of(16, asked)
    generations = [each for each in asked if each.task is Task.GENERATE]
    assert [len(heard.latency_s[task]) for task in Task] == [len(asked) - len(generations), len(generations)]
    assert len(heard.first_s) == len(generations)
    assert len(heard.between_s) <= sum(each.new_tokens for each in generations)  # the end comes by itself
    assert heard.between_s
    assert 0.0 < heard.busiest_cpu_s <= heard.seconds * 4


def test_a_closed_loop_counts_what_ends_in_the_measured_time(clients: Clients) -> None:
    heard = clients.closed_loop(8, LENGTHS.drawn(0.5, 2), warm_up_s=0.1, seconds=0.2)
    assert heard.busiest_cpu_s >= 0.2
    assert heard.per_cpu_s > 0.0
    assert all(heard.per_s(task) > 0.0 for task in Task)
    assert max(heard.latency_s[Task.EMBED]) < 10.0


def test_requests_at_a_rate_are_sent_whatever_becomes_of_those_before(clients: Clients) -> None:
    heard = clients.at_rate(50.0, LENGTHS.drawn(0.0, 3), warm_up_s=0.2, seconds=0.6)
    assert 30 <= len(heard.latency_s[Task.EMBED]) <= 40  # those of the warm-up may end in the measured time


def test_a_request_that_is_refused_is_an_error(clients: Clients) -> None:
    with pytest.raises(StackError, match="a token id is not below 30522"):
        clients.all_of(1, [Asked(Task.GENERATE, [10_000_000], 2)])
