"""One simulation: arrivals, aggregators, pods and the network between them, in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from aggregator.scheduler.replica import StepReport
from aggregator.scheduler.work_item import Priority
from loadtest.simulate.clock import Clock, Noise
from loadtest.simulate.curves import find
from loadtest.simulate.desk import Desk
from loadtest.simulate.fleet import Fleet
from loadtest.simulate.outcome import Outcome, Record, summarise
from loadtest.simulate.parcel import Parcel
from loadtest.simulate.pod import Engine, Pod
from loadtest.simulate.scaling import Scaling
from loadtest.simulate.scenario import Mishap, Policy, Scenario, Trouble
from loadtest.simulate.sender import Sender
from loadtest.simulate.stretches import STRETCH_S, Stretches

_BEFORE_S = -1.0
"""When a backlog came: before the first arrival, so that its answers count by themselves."""
_TAIL_S = 120.0
"""How long after the last arrival answers are waited for."""


@dataclass(slots=True, eq=False)
class _Place:
    """One aggregator, its core, and when it wants to be asked again."""

    sender: Sender
    desk: Desk = field(default_factory=Desk)
    wake_s: float = inf
    waits: bool = False


class World:
    """A scenario under a policy; `run` it once. The same seed gives the same outcome, to the byte."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int) -> None:
        self._scenario, self._policy, self._seed = scenario, policy, seed
        self._rng = np.random.default_rng([seed, 1])
        self._noise = Noise(np.random.default_rng([seed, 2]), scenario.noise, scenario.step_times)
        self.clock = Clock()
        engine = Engine(find(scenario.curve), longest_input=scenario.lengths.longest, overhead_s=scenario.work.step_s)
        self._places = [_Place(policy.sender(number, scenario, engine)) for number in range(scenario.aggregators)]
        self.record = Record(scenario.warm_up_s)
        self.fleet = Fleet(engine, self.clock, self._noise, self._reply, [place.sender for place in self._places])
        self._curve = engine.curve
        self._out: dict[int, dict[int, Parcel]] = {}
        self._travel_s = 0.0
        for _ in range(scenario.pods):
            self.fleet.start(0.0)
        for trouble in scenario.troubles:
            self.clock.at(trouble.at_s, self._begin, trouble)
        self._scaling = Scaling(scenario, self.clock, self.fleet) if scenario.autoscale is not None else None
        self._busy = (0.0, 0.0)
        self.clock.at(scenario.duration_s, self._stop_counting)
        if scenario.sample_s:
            self.clock.at(scenario.sample_s, self._sample)

    def run(self) -> Outcome:
        """Let the load pass, and say what came of it."""
        scenario, clock, record = self._scenario, self.clock, self.record
        times = scenario.arrivals.draw(scenario.duration_s, self._rng)
        lengths = scenario.lengths.draw(len(times), self._rng)
        which = self._rng.integers(0, scenario.aggregators, len(times)).tolist()
        intake_s, from_s, take, work = scenario.intake_s, scenario.warm_up_s, self._take, scenario.work
        self._queue_backlog()
        places, scaling, next_s, step = self._places, self._scaling, clock.next_s, clock.step
        stretches, ready, pod_tokens_per_s = None, self.fleet.ready, 0.0
        if scenario.calm_share < 1.0:
            stretches = record.stretches = Stretches(scenario.calm_share, times, lengths, self._rng)
            pod_tokens_per_s = self._policy.tokens_per_s(self._curve, float(lengths.mean()))
        until_s, left_out = 0.0, False
        for came_s, tokens, number in zip(times.tolist(), lengths.tolist(), which, strict=True):
            now_s = came_s + intake_s
            while next_s() <= now_s:
                step()
            clock.now_s = now_s
            place = places[number]
            if scaling is not None:
                scaling.arrived(tokens)
            record.arrived += came_s >= from_s
            if stretches is not None and came_s >= until_s:
                stretch = int(came_s // STRETCH_S)
                until_s = (stretch + 1) * STRETCH_S
                left_out = stretches.leaves_out(stretch, self._held_tokens(), len(ready) * pod_tokens_per_s)
            if left_out:
                continue
            if work.waits:
                clock.at(place.desk.done_s(now_s, 0.5 * (work.call_s + work.query_s)), take, (place, came_s, tokens))
            else:
                take((place, came_s, tokens))
        while next_s() <= scenario.duration_s + _TAIL_S:
            step()
        return self._outcome()

    def _held_tokens(self) -> int:
        return sum(place.sender.held_tokens for place in self._places)

    def _queue_backlog(self) -> None:
        for place in self._places:
            for tokens in self._scenario.lengths.draw(self._scenario.backlog, self._rng).tolist():
                place.sender.put(0.0, _BEFORE_S, inf, tokens, Priority.DEFAULT)
            if self._scenario.backlog:
                self.clock.at(0.0, self._look, place)

    def _take(self, came: tuple[_Place, float, int]) -> None:
        place, came_s, tokens = came
        if not place.sender.put(
            self.clock.now_s, came_s, came_s + self._scenario.deadline_s, tokens, self._scenario.priority
        ):
            self.record.refused += came_s >= self.record.from_s
        elif not place.waits:
            self._look(place)

    def _look(self, place: _Place) -> None:
        """Send what is due, and note when to look again."""
        now_s = self.clock.now_s
        parcels, wake_s = place.sender.due(now_s)
        for parcel in parcels:
            self._send(place, parcel, now_s)
        place.waits = place.sender.waits
        if wake_s < place.wake_s or place.wake_s <= now_s:
            place.wake_s = wake_s
            if wake_s < inf:
                self.clock.at(wake_s, self._wake, (place, wake_s))

    def _wake(self, asked: tuple[_Place, float]) -> None:
        place, wake_s = asked
        if place.wake_s == wake_s:
            place.wake_s = inf
            self._look(place)

    def _send(self, place: _Place, parcel: Parcel, now_s: float) -> None:
        self.record.sent(parcel.token_count, parcel.token_budget, now_s)
        pod = self.fleet.pods[parcel.pod]
        leaves_s = place.desk.done_s(now_s, 0.5 * self._scenario.work.batch_s)
        self.clock.at(leaves_s + self._scenario.network_s * self._noise.delay(), pod.arrive, parcel)
        if parcel.timeout_s < inf:
            self.clock.at(now_s + parcel.timeout_s, self._fail, (place, parcel))
        self._out.setdefault(parcel.pod, {})[id(parcel)] = parcel

    def _reply(self, parcel: Parcel, report: StepReport) -> None:
        delay_s = self._scenario.network_s * self._noise.delay()
        act = self._read if self._scenario.work.waits else self._answer
        self.clock.at(self.clock.now_s + delay_s, act, (parcel, report))

    def _read(self, came: tuple[Parcel, StepReport]) -> None:
        desk = self._places[came[0].sender].desk
        self.clock.at(desk.done_s(self.clock.now_s, 0.5 * self._scenario.work.batch_s), self._answer, came)

    def _answer(self, came: tuple[Parcel, StepReport]) -> None:
        parcel, report = came
        if parcel.over:
            return
        self._end(parcel)
        place, now_s, record, scenario = self._places[parcel.sender], self.clock.now_s, self.record, self._scenario
        answered = place.sender.done(parcel, report, now_s)
        self._look(place)  # the next batch first: these are answered while the engine runs it
        work, done_s, complete_s, from_s = scenario.work, place.desk.done_s, scenario.complete_s, record.from_s
        done_s(now_s, 0.5 * work.query_s * len(answered))
        if scenario.backlog and from_s <= now_s <= scenario.duration_s:
            record.backlog_answered += sum(came_s < 0.0 for came_s in answered)
        for came_s in answered:
            read_s = done_s(now_s, 0.5 * work.call_s) + complete_s
            if came_s >= from_s:
                record.came_s.append(came_s)
                record.latency_s.append(read_s - came_s)

    def _fail(self, failed: tuple[_Place, Parcel]) -> None:
        place, parcel = failed
        if parcel.over:
            return
        self._end(parcel)
        place.sender.failed(parcel, self.clock.now_s, self._noise.uniform())
        self._look(place)

    def _end(self, parcel: Parcel) -> None:
        parcel.over = True
        del self._out[parcel.pod][id(parcel)]

    def _begin(self, trouble: Trouble) -> None:
        pod = self.fleet.pods[trouble.pod]
        match trouble.mishap:
            case Mishap.SLOW:
                pod.slowness = trouble.factor
            case Mishap.HANGS:
                pod.hangs = True
            case Mishap.DIES:
                self._die(pod)
                return
        if trouble.for_s < inf:
            self.clock.at(self.clock.now_s + trouble.for_s, self._heal, pod)

    def _heal(self, pod: Pod) -> None:
        pod.slowness, pod.hangs = 1.0, False
        if not pod.running:
            pod.start()

    def _die(self, pod: Pod) -> None:
        """Its connections end at once; another pod starts in its place."""
        pod.die()
        self.fleet.leave(pod)
        for parcel in list(self._out.get(pod.number, {}).values()):
            self._fail((self._places[parcel.sender], parcel))
        start_s = self._scenario.autoscale.start_s if self._scenario.autoscale is not None else 30.0
        self.fleet.start(self.clock.now_s + start_s)

    def _sample(self, _: object) -> None:
        now_s, senders = self.clock.now_s, [place.sender for place in self._places]
        speeds: Sequence[tuple[int, float]] = senders[0].speeds()
        self.record.trace.append(
            {
                "time_s": round(now_s, 6),
                "arrived": float(self.record.arrived),
                "held_tokens": float(self._held_tokens()),
                "token_budget": float(speeds[0][0]) if speeds else 0.0,
                "step_s": speeds[0][1] if speeds else 0.0,
                "ready": float(len(self.fleet.ready)),
                "replicas": float(self._scaling.hpa.replicas if self._scaling is not None else self._scenario.pods),
                "required": self._scaling.required if self._scaling is not None else 0.0,
            }
        )
        if now_s < self._scenario.duration_s:
            self.clock.at(now_s + self._scenario.sample_s, self._sample)

    def _stop_counting(self, _: object) -> None:
        """What is worked off after the load's end says nothing of how busy it kept the engines."""
        self._busy = self.fleet.busy(self._scenario.duration_s)

    def _outcome(self) -> Outcome:
        scenario = self._scenario
        return summarise(
            self.record,
            names=(scenario.name, self._policy.label, self._seed),
            expired=sum(place.sender.expired for place in self._places),
            slo_s=scenario.slo_s,
            seconds=scenario.duration_s - scenario.warm_up_s,
            busy=self._busy,
        )


def simulate(scenario: Scenario, policy: Policy, seed: int = 1) -> Outcome:
    """Run one scenario under one policy."""
    return World(scenario, policy, seed).run()
