"""The pods there are: starting, ready, leaving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from aggregator.scheduler.replica import StepReport
from loadtest.simulate.clock import Clock, Noise
from loadtest.simulate.parcel import Parcel
from loadtest.simulate.pod import Engine, Pod
from loadtest.simulate.sender import Sender


class Fleet:
    """Every pod that ever was, by its number; `ready` ones have a replica in each aggregator."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        noise: Noise,
        reply: Callable[[Parcel, StepReport], None],
        senders: Sequence[Sender],
    ) -> None:
        self.pods: list[Pod] = []
        self.ready: dict[int, Pod] = {}
        self._engine, self._clock, self._noise, self._reply = engine, clock, noise, reply
        self.senders = senders
        self._starting: dict[int, Pod] = {}
        self._from_s: dict[int, float] = {}
        self._until_s: dict[int, float] = {}

    @property
    def count(self) -> int:
        """Pods that were asked for and not sent away."""
        return len(self.ready) + len(self._starting)

    def start(self, ready_s: float) -> None:
        """Ask for one more pod, which serves from `ready_s` on; it costs from now on."""
        pod = Pod(len(self.pods), self._engine, self._clock, self._noise, self._reply)
        self.pods.append(pod)
        self._from_s[pod.number] = self._clock.now_s
        self._starting[pod.number] = pod
        if ready_s <= self._clock.now_s:
            self._join(pod)
        else:
            self._clock.at(ready_s, self._join, pod)

    def scale(self, replicas: int, ready_s: float) -> None:
        """Have so many pods: new ones serve from `ready_s` on; those that still start go first, then the youngest."""
        while self.count < replicas:
            self.start(ready_s)
        for _ in range(self.count - replicas):
            self.leave((self._starting or self.ready)[max(self._starting or self.ready)])

    def leave(self, pod: Pod) -> None:
        """A pod takes no more batches, and costs nothing from now on."""
        self._starting.pop(pod.number, None)
        self._until_s[pod.number] = self._clock.now_s
        if self.ready.pop(pod.number, None) is not None:
            for sender in self.senders:
                sender.leave(pod.number)

    def busy(self, until_s: float) -> tuple[float, float]:
        """Seconds that engines computed, and seconds that pods were there, up to a time."""
        there_s = sum(
            max(0.0, min(self._until_s.get(number, inf), until_s) - from_s) for number, from_s in self._from_s.items()
        )
        return sum(pod.busy_s for pod in self.pods), there_s

    def _join(self, pod: Pod) -> None:
        if self._starting.pop(pod.number, None) is None:
            return  # sent away while it started
        self.ready[pod.number] = pod
        pod.idle_since_s = self._clock.now_s
        for sender in self.senders:
            sender.join(pod.number)
