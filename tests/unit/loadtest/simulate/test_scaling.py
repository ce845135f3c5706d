"""The autoscaler's rules, as Kubernetes documents them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from loadtest.simulate.scaling import Hpa, HpaPolicy

EVERY_15_S = range(0, 10_000, 15)


@pytest.mark.parametrize(
    ("policy", "start", "times_s", "metrics", "replicas"),
    [
        (HpaPolicy(), 10, EVERY_15_S, [11.0, 11.1], [10, 12]),  # within a tenth nothing changes
        (HpaPolicy(), 1, EVERY_15_S[1:], [100.0] * 5, [5, 10, 20, 40, 80]),  # it doubles, or adds four pods in a period
        (HpaPolicy(sync_s=5.0), 1, (5, 10, 15, 20), [100.0] * 4, [5, 5, 5, 10]),  # which begins with the first change
        (HpaPolicy(), 10, EVERY_15_S, [10.0] + [2.0] * 21, [10] * 21 + [2]),  # down only after the window, then at once
        (HpaPolicy(), 4, EVERY_15_S[1:], [1.0] * 22, [4] * 20 + [1] * 2),  # what is there at first is kept for a window
        (HpaPolicy(up_window_s=30.0), 2, EVERY_15_S, [2.0, 5.0, 6.0, 6.0], [2, 2, 2, 5]),  # the lowest in its window
        (HpaPolicy(min_replicas=2, max_replicas=4), 3, (0, 1000), [100.0, 0.0], [4, 2]),
        (
            HpaPolicy(down_window_s=0.0, down_pods=1, down_share=0.0, down_period_s=120.0),
            4,
            range(0, 1000, 30),
            [1.0] * 9,
            [3, 3, 3, 3, 2, 2, 2, 2, 1],
        ),
    ],
)
def test_pods_follow_the_metric_as_the_policies_allow(
    policy: HpaPolicy, start: int, times_s: Sequence[int], metrics: list[float], replicas: list[int]
) -> None:
    hpa = Hpa(policy, start)
    assert [hpa.sync(metric, float(at_s)) for at_s, metric in zip(times_s, metrics, strict=False)] == replicas
