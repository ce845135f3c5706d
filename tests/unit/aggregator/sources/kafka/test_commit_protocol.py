"""The commit protocol against all that can happen: never past the unfinished, never lost, never stuck."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from aiokafka import TopicPartition
from aiokafka import errors as kafka_errors
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from typing_extensions import override

from aggregator.errors import Code
from aggregator.request.request import Failure
from tests.support.simulated_group import GAP, TPS, GroupSimulation

BAD = Failure(Code.INVALID_ARGUMENT, "the sender's fault")
BROKEN = Failure(Code.INTERNAL, "the engine's fault")
REFUSALS = (kafka_errors.TopicAuthorizationFailedError("in-dlt"), kafka_errors.MessageSizeTooLargeError())
_WHICH = st.integers(0, 10_000)
_STEPS = 2_500
_MOST_PROCESSES = 3


class CommitProtocol(RuleBasedStateMachine):
    """Deliver, complete in any order, fail, revoke, reassign, crash; commits and replies are late, lost or refused."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.simulation = GroupSimulation()
        self.simulation.start()
        self.simulation.start()
        self.simulation.run(1.0)

    @rule(
        tp=st.sampled_from(TPS), good=st.lists(st.booleans(), min_size=1, max_size=6), gap=st.sampled_from((0, 0, GAP))
    )
    def produce(self, tp: TopicPartition, good: list[bool], gap: int) -> None:
        for each in good:
            self.simulation.append(tp, good=each, gap=gap)

    @precondition(lambda self: any(process.taken for process in self.simulation.processes))
    @rule(which=_WHICH, count=st.sampled_from((1, 2, 30)), failure=st.sampled_from((BAD, BAD, BROKEN)))
    def complete(self, which: int, count: int, failure: Failure) -> None:
        busy = [process for process in self.simulation.processes if process.taken]
        process = busy[which % len(busy)]
        start = which % len(process.taken)
        process.complete(tuple(process.taken[start : start + count]), failure)

    @rule(seconds=st.sampled_from((0.05, 0.3, 0.3, 1.5, 6.0)))
    def wait(self, seconds: float) -> None:
        self.simulation.run(seconds)

    @rule(
        which=_WHICH,
        what=st.sampled_from(("join", "crash", "shut down", "put out", "put out", "break", "hold", "go on")),
    )
    def disrupt(self, which: int, what: str) -> None:
        simulation = self.simulation
        if what == "join" or not simulation.processes:
            if len(simulation.processes) < _MOST_PROCESSES:
                simulation.start()
            return
        process = simulation.processes[which % len(simulation.processes)]
        members = list(simulation.kafka.members.values())
        match what:
            case "crash":
                simulation.kill(process)
            case "shut down":
                simulation.shut_down(process)
            case "put out" if members:
                simulation.put_out(members[which % len(members)], notices_s=which % 3)
            case "break" if members:
                members[which % len(members)].failure = kafka_errors.KafkaError("it broke")
            case _:
                process.path.pause(lambda _model, _task: what == "hold", lambda _model, _priority: False)

    @rule(commits=st.booleans(), replies=st.booleans(), poll_s=st.sampled_from((0.0, 0.0, 0.7)))
    def hold_answers(self, commits: bool, replies: bool, poll_s: float) -> None:
        self.simulation.kafka.held, self.simulation.kafka.flights_held = commits, replies
        self.simulation.kafka.poll_delay_s = poll_s

    @precondition(lambda self: self.simulation.kafka.sent)
    @rule(which=_WHICH, fate=st.sampled_from(("arrive", "answer", "answer", "lose")))
    def decide_commit(self, which: int, fate: str) -> None:
        sent = self.simulation.kafka.sent
        getattr(self.simulation.kafka, fate)(sent[which % len(sent)])

    @precondition(lambda self: self.simulation.kafka.under_way)
    @rule(which=_WHICH, refused=st.lists(st.sampled_from((None, None, *REFUSALS)), max_size=3))
    def acknowledge(self, which: int, refused: list[Exception | None]) -> None:
        flights = self.simulation.kafka.under_way
        self.simulation.kafka.acknowledge(flights[which % len(flights)], refused)

    @precondition(lambda self: self.simulation.kafka.under_way)
    @rule(which=_WHICH)
    def write_in_silence(self, which: int) -> None:
        flights = self.simulation.kafka.under_way
        self.simulation.kafka.write(flights[which % len(flights)])

    @invariant()
    def what_was_promised_holds(self) -> None:
        type(self).steps += 1
        self.simulation.run(0.06)
        self.simulation.check_spans()
        assert not self.simulation.violations, self.simulation.violations

    @override
    def teardown(self) -> None:
        try:
            if not self.simulation.violations:
                self.simulation.recover(BAD)
                assert not self.simulation.violations, self.simulation.violations
        finally:
            self.simulation.close()


@pytest.mark.slow
@pytest.mark.parametrize("half", ["One", "Other"])
def test_no_interleaving_loses_repeats_or_holds_for_ever(half: str) -> None:
    """The games are always the same; one that fails is not made smaller, which takes long."""
    machine: Any = type(half, (CommitProtocol,), {"steps": 0})  # its name seeds the search
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=50,
            phases=[Phase.generate],
            suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large),
        ),
    )
    assert machine.steps >= _STEPS


def test_a_membership_that_breaks_while_releasing_topics_has_a_successor() -> None:
    first, other = TPS
    game = CommitProtocol()
    game.hold_answers(commits=False, replies=True, poll_s=0.0)
    game.produce(other, [True, False], 0)
    game.wait(0.06)
    game.produce(first, [False], GAP)
    game.wait(0.06)
    game.hold_answers(commits=True, replies=False, poll_s=0.0)
    game.acknowledge(1, [None])
    game.produce(first, [True, False, True, True, True, True], GAP)
    game.wait(0.06)
    game.produce(first, [False, False, False, True], 0)
    game.wait(0.06)
    game.wait(6.0)
    game.disrupt(0, "hold")
    game.disrupt(0, "break")
    game.teardown()
