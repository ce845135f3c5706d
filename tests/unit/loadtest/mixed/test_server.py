"""What a step of a simulated server holds, and how long requests wait under each policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.lab.mixed.policies import Floor, Policy, Proportional, Waiting
from loadtest.lab.mixed.run import Fleet, all_of, split
from loadtest.lab.mixed.server import Apart, Engine, Request, Server, Task
from modelserver.scheduler.step_limits import StepCost

COST = StepCost(0.01, 0.0004, 0.0002)
LONGEST = 64
TARGET_S = 0.1
SEQUENCES = 16

generations = st.builds(Request, st.just(Task.GENERATE), st.integers(1, 128), st.integers(1, 12))
policies = st.sampled_from([Floor, Proportional])


def engine(target_s: float = TARGET_S) -> Engine:
    return Engine(COST, step_tokens=512, sequences=SEQUENCES, target_s=target_s)


@given(st.integers(16, 512), st.integers(0, 4096), st.integers(1, 600), st.integers(1, 600))
def test_the_papers_rule_never_starves_either_task(
    left: int, prompt_tokens: int, waiting: int, generations: int
) -> None:
    tokens = Proportional().embedding_tokens(left, Waiting(prompt_tokens, waiting, generations))
    share = left * waiting / (waiting + generations)
    assert tokens >= min(share, left)
    assert left - tokens >= min(prompt_tokens, int(left - share))


def test_an_embedding_behind_many_prompts_waits_for_them_under_the_papers_rule_only() -> None:
    def latency_s(policy: type[Policy]) -> float:
        requests = [Request(Task.GENERATE, 100, 20) for _ in range(400)] + [Request(Task.EMBED, 20) for _ in range(5)]
        return all_of(Fleet("one", both=1, policy=policy), engine(), requests).percentile_s(Task.EMBED, 99)

    assert latency_s(Floor) < 2 * TARGET_S  # the step that runs, and the next one
    assert latency_s(Proportional) > 3 * latency_s(Floor)


@pytest.mark.parametrize("fleet", [Fleet("m", both=2), Fleet("a", both=2, policy=Apart.ALTERNATING), split(1, 1)])
def test_every_request_ends_once_on_every_fleet(fleet: Fleet) -> None:
    requests = [Request(Task.GENERATE, 100, 20, 0.01 * number) for number in range(50)]
    requests += [Request(Task.EMBED, 20, 0, 0.005 * number) for number in range(100)]
    found = all_of(fleet, engine(), requests)
    assert [len(found.latency_s[task]) for task in Task] == [100, 50]
    assert len(found.first_token_s) == 50
    assert sum(count for _, count in found.between_s) == 50 * 19
    assert 0.0 < found.busy <= 1.0


def test_alternating_breaks_the_time_between_tokens_by_a_step_that_embeds() -> None:
    def between_s(policy: type[Policy] | Apart) -> float:
        requests = [Request(Task.GENERATE, 16, 100) for _ in range(8)]
        requests += [Request(Task.EMBED, LONGEST) for _ in range(400)]
        return all_of(Fleet("one", both=1, policy=policy), engine(), requests).between_percentile_s(99)

    assert between_s(Floor) <= 0.8 * TARGET_S + 1e-9
    assert between_s(Apart.ALTERNATING) > TARGET_S * 0.8


def test_an_embedding_longer_than_a_step_is_computed_in_parts() -> None:
    server = Server(engine(), Floor())
    request = Request(Task.EMBED, 1200)
    server.put(request)
    taken = [server.step().embedding_tokens for _ in range(3)]
    assert taken == [512, 512, 176]
    assert not server.has_work
