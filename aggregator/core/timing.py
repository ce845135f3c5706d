"""Two things that a lane learns from replies: when to send a batch that need not be full, and how late answers are."""

from __future__ import annotations


class LightLead:
    """How long before the running step's end to send what waits, when all of it fits one batch.

    Then the engine has time to spare, and a query that comes while a batch lies staged waits a whole step for the
    next one: so the batch is to arrive just as the engine comes free, half of them a little late.
    """

    __slots__ = ("_gain", "_least_s", "value_s")

    def __init__(self, first_s: float, least_s: float, gain: float = 0.05) -> None:
        """`gain`: the share of each surprise that counts."""
        self.value_s = first_s
        self._least_s = least_s
        self._gain = gain

    def observe(self, lead_s: float, idle_s: float, staged_s: float) -> None:
        """A batch was sent `lead_s` before the end, and the engine was idle before it, or it lay staged.

        Whatever lead it went by, it tells which one would have been right; a stray one counts no more than the lead.
        """
        surprise_s = max(-self.value_s, min(lead_s + idle_s - staged_s - self.value_s, self.value_s))
        self.value_s = max(self._least_s, self.value_s + self._gain * surprise_s)


class ReplyDelay:
    """How long after its predicted end a batch is answered, in step times: the mean and twice the mean deviation.

    As in TCP's time-outs (Jacobson, "Congestion avoidance and control", 1988). A query whose deadline lies within
    it would be computed for nobody. In step times, so that a lane that was slow forgets it as it quickens.
    """

    __slots__ = ("_deviation", "_gain", "_mean")

    def __init__(self, gain: float = 0.05) -> None:
        self._gain = gain
        self._mean = 0.0
        self._deviation = 0.0

    @property
    def value(self) -> float:
        """Step times to count on; never negative, 0 before any reply."""
        return max(0.0, self._mean + 2.0 * self._deviation)

    def observe(self, delay_s: float, step_s: float) -> None:
        """A reply came so long after its predicted end; more than the time of its step, `step_s`, counts as that."""
        surprise = max(-1.0, min(delay_s / step_s, 1.0)) - self._mean if step_s > 0.0 else 0.0
        self._mean += self._gain * surprise
        self._deviation += self._gain * (abs(surprise) - self._deviation)
