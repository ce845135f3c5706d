"""Moving averages: leaving tokens, step times, delays of replies, leads of batches."""

from __future__ import annotations

import math
from math import inf

_BUSY_WINDOW_S = 15.0  # a usual scrape interval


class BusyShare:
    """The share of the last seconds that a thread used the CPU, from readings of two clocks."""

    __slots__ = ("_readings",)

    def __init__(self) -> None:
        self._readings: list[tuple[float, float]] = []

    def observe(self, now_s: float, cpu_s: float) -> float:
        """Take a reading (any clock, the thread's CPU time); returns the share since the oldest one in the window.

        0 at the first reading. The last reading before the window is kept, so that rare readings still span it.
        """
        readings = self._readings
        readings.append((now_s, cpu_s))
        start_s = now_s - _BUSY_WINDOW_S
        while len(readings) > 2 and readings[1][0] <= start_s:  # noqa: PLR2004 - a span
            readings.pop(0)
        first_s, first_cpu_s = readings[0]
        return min(1.0, max(0.0, (cpu_s - first_cpu_s) / (now_s - first_s))) if now_s > first_s else 0.0


_FIRST_WINDOW_S, _WINDOW_S = 0.2, 1.0  # a first figure soon, then a figure that no single batch sways
_FORGET_S = 5.0  # seconds between refusals, after which the load may be another


class Drain:
    """Tokens that leave per second, from the difference between two readings.

    It is read whenever a caller is refused: then something always waits, and tokens leave at the full rate.
    """

    def __init__(self) -> None:
        self._tokens_per_s: float | None = None
        self._began_s = self._looked_s = -inf
        self._left = 0

    def tokens_per_s(self, left: int, now_s: float) -> float | None:
        """The rate, when `left` tokens have left in total; None until it is known."""
        if now_s - self._looked_s > _FORGET_S:
            self._tokens_per_s = None
            self._began_s, self._left = now_s, left
        self._looked_s = now_s
        window_s = _FIRST_WINDOW_S if self._tokens_per_s is None else _WINDOW_S
        if now_s - self._began_s >= window_s and left > self._left:
            self._tokens_per_s = (left - self._left) / (now_s - self._began_s)
            self._began_s, self._left = now_s, left
        return self._tokens_per_s


class LiveScale:
    """How many times slower one replica runs than its curve: a robust moving average of measured over fitted time.

    It averages logarithms, so that twice and half as fast weigh the same. One outlier moves it by at most `weight *
    clip`. The first steps weigh more, as in a plain mean that begins with one value of 1.0.
    """

    __slots__ = ("_clip", "_count", "_log_scale", "_weight", "value")

    def __init__(self, weight: float = 0.1, clip: float = 0.7) -> None:
        """`weight`: the share of a new step once warm. `clip`: the largest deviation that counts (natural logarithm).

        `value` is the factor for fitted times; 1.0 before any step.
        """
        self.value = 1.0
        self._weight = weight
        self._clip = clip
        self._count = 1
        self._log_scale = 0.0

    def observe(self, measured_s: float, fitted_s: float) -> None:
        """Learn from one step.

        A time that is not positive and finite is ignored: an engine may be faster than its clock's tick.
        """
        if not (0.0 < measured_s < math.inf and 0.0 < fitted_s < math.inf):
            return
        self._count += 1
        surprise = math.log(measured_s / fitted_s) - self._log_scale
        weight = max(self._weight, 1.0 / self._count)
        self._log_scale += weight * max(-self._clip, min(self._clip, surprise))
        self.value = math.exp(self._log_scale)


class ReplyDelay:
    """How long after its predicted end a batch is answered, in step times: the mean and twice the mean deviation.

    As in TCP's time-outs (Jacobson, "Congestion avoidance and control", 1988). A query with a deadline before that
    would be computed in vain. The unit is a step time, so that a replica that was slow forgets its delay as it
    speeds up.
    """

    __slots__ = ("_deviation", "_gain", "_mean")

    def __init__(self, gain: float = 0.05) -> None:
        self._gain = gain
        self._mean = 0.0
        self._deviation = 0.0

    @property
    def value(self) -> float:
        """Expected delay in step times; never negative, 0 before any reply."""
        return max(0.0, self._mean + 2.0 * self._deviation)

    def observe(self, delay_s: float, step_s: float) -> None:
        """A reply came `delay_s` after its predicted end; more than the step's time, `step_s`, counts as that."""
        surprise = max(-1.0, min(delay_s / step_s, 1.0)) - self._mean if step_s > 0.0 else 0.0
        self._mean += self._gain * surprise
        self._deviation += self._gain * (abs(surprise) - self._deviation)


_LEAD_GAIN = 0.05


class LightLead:
    """How many seconds before the running step's predicted end a nearly empty batch is sent: just in time, in the mean.

    A query that comes while a batch is staged waits a step longer. While batches are far from full the engine has time
    to spare, so half of them may come a little late. A full one is sent earlier, so that hardly any does.
    """

    __slots__ = ("_least_s", "value_s")

    def __init__(self, first_s: float, least_s: float) -> None:
        self.value_s = first_s
        self._least_s = least_s

    def up_to(self, full_s: float, fill: float) -> float:
        """The lead while this share of a batch waits: it grows evenly, to `full_s` for a full one."""
        full_s = max(full_s, self.value_s)
        return full_s - max(0.0, 1.0 - fill) * (full_s - self.value_s)

    def observe(self, right_s: float) -> None:
        """A batch was staged, early or late, and should have been sent `right_s` before that end.

        An outlier counts for no more than the value itself.
        """
        surprise_s = max(-self.value_s, min(right_s - self.value_s, self.value_s))
        self.value_s = max(self._least_s, self.value_s + _LEAD_GAIN * surprise_s)
