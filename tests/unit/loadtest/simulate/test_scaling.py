"""The autoscaler's rules, as Kubernetes documents them."""

from __future__ import annotations

from loadtest.simulate.scaling import Hpa, HpaPolicy


def test_within_a_tenth_nothing_changes() -> None:
    hpa = Hpa(HpaPolicy(), 10)
    assert hpa.sync(11.0, 0.0) == 10
    assert hpa.sync(11.1, 15.0) == 12


def test_it_doubles_or_adds_four_pods_in_a_period_at_most() -> None:
    hpa = Hpa(HpaPolicy(), 1)
    assert [hpa.sync(100.0, 15.0 * number) for number in range(1, 6)] == [5, 10, 20, 40, 80]


def test_within_one_period_of_the_policies_the_limit_counts_from_its_start() -> None:
    hpa = Hpa(HpaPolicy(sync_s=5.0), 1)
    assert [hpa.sync(100.0, at_s) for at_s in (5.0, 10.0, 15.0, 20.0)] == [5, 5, 5, 10]


def test_it_scales_down_only_after_the_window_and_then_at_once() -> None:
    hpa = Hpa(HpaPolicy(), 10)
    hpa.sync(10.0, 0.0)
    replicas = [hpa.sync(2.0, 15.0 * number) for number in range(1, 22)]
    assert replicas[:20] == [10] * 20
    assert replicas[-1] == 2


def test_what_is_there_at_first_is_kept_for_a_window() -> None:
    hpa = Hpa(HpaPolicy(), 4)
    replicas = [hpa.sync(1.0, 15.0 * number) for number in range(1, 23)]
    assert replicas == [4] * 20 + [1] * 2


def test_a_window_for_scaling_up_takes_the_lowest_recommendation_in_it() -> None:
    hpa = Hpa(HpaPolicy(up_window_s=30.0), 2)
    assert [hpa.sync(metric, 15.0 * number) for number, metric in enumerate((2.0, 5.0, 6.0, 6.0))] == [2, 2, 2, 5]


def test_the_bounds_hold() -> None:
    hpa = Hpa(HpaPolicy(min_replicas=2, max_replicas=4), 3)
    assert hpa.sync(100.0, 0.0) == 4
    assert hpa.sync(0.0, 1000.0) == 2


def test_pods_go_one_by_one_where_the_policies_say_so() -> None:
    policy = HpaPolicy(down_window_s=0.0, down_pods=1, down_share=0.0, down_period_s=120.0)
    hpa = Hpa(policy, 4)
    replicas = [hpa.sync(1.0, 30.0 * number) for number in range(1, 10)]
    assert replicas == [3, 3, 3, 3, 2, 2, 2, 2, 1]
