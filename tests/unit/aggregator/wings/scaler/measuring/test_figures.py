"""Inputs become one figure per model; what is old or missing is an error, never a zero."""

from __future__ import annotations

import pytest

from aggregator.settings.aggregator import KafkaSettings
from aggregator.wings.scaler.measuring.aggregators import Answers
from aggregator.wings.scaler.measuring.demand import DemandPolicy, StaleInputError
from aggregator.wings.scaler.measuring.figures import Figure, ModelFigures, Replicas, TopicShares, positions
from aggregator.wings.scaler.measuring.kafka_lag import KafkaLag, LogEnds
from protos.aggregator.v1 import aggregator_pb2 as pb

TOPIC = "requests"
POLICY = DemandPolicy(drain_s=30, utilisation=0.75, peak_hold_s=0.0, max_age_s=20)


def answer(*partitions: tuple[int, int], **demand: float) -> pb.GetDemandResponse:
    """One aggregator that owns (partition, position)s; its one replica does 10,000 tokens/s."""
    replica = pb.Replica(address="a", token_budget=500, step_time_s=0.05)
    model = pb.ModelDemand(model="m", replicas=[replica])
    for name, value in demand.items():
        setattr(model, name, value)
    owned = [pb.Partition(topic=TOPIC, partition=number, fetch_position=at, model="m") for number, at in partitions]
    return pb.GetDemandResponse(models=[model], partitions=owned, busy_share=0.25)


def ends(at_s: float, *log_ends: int, committed: dict[int, int] | None = None) -> LogEnds:
    places = {(TOPIC, number): end for number, end in enumerate(log_ends)}
    done = {(TOPIC, number): offset for number, offset in (committed or {}).items()}
    return LogEnds(dict.fromkeys(places, 0), places, done, at_s)


def figures(arrival_window_s: float = 20.0) -> ModelFigures:
    return ModelFigures(
        "m", TopicShares({"m": [TOPIC]}), POLICY, first_tokens_per_record=10.0, arrival_window_s=arrival_window_s
    )


def test_calls_and_backlog_together_make_the_figure() -> None:
    answers = Answers((answer((0, 900), other_tokens_per_s=6000.0, held_tokens=3000),), 100.0)
    figure = figures().update(answers, ends(100.0, 1000), None, 100.0)
    # (6000 + (100 records * 10 tokens + 3000 held) / 30) / (0.75 * 10,000)
    assert figure.required_replicas == pytest.approx((6000 + 4000 / 30) / 7500)
    assert figure.lag_records == 100


def test_a_share_of_the_demand_requires_that_share_of_replicas_and_of_lag() -> None:
    answers = Answers((answer((0, 900), other_tokens_per_s=6000.0, held_tokens=3000, pending_requests=6),), 100.0)
    shares = TopicShares({"m": [TOPIC]})
    whole, quarter, none = (
        ModelFigures("m", shares, POLICY, first_tokens_per_record=10.0, arrival_window_s=20.0, share=share).update(
            answers, ends(100.0, 1000), None, 100.0
        )
        for share in (1.0, 0.25, 0.0)
    )
    assert quarter.required_replicas == pytest.approx(whole.required_replicas / 4)
    assert (whole.lag_records, quarter.lag_records) == (100, 25)
    assert (none.required_replicas, none.lag_records) == (0.0, 0)


def test_a_model_that_generates_asks_for_the_memory_that_its_texts_hold() -> None:
    asked = answer((0, 1000), other_tokens_per_s=6000.0, kv_token_s_per_token=2.0)
    asked.models[0].replicas[0].kv_tokens = 4000
    figure = figures().update(Answers((asked,), 100.0), ends(100.0, 1000), None, 100.0)
    assert figure.required_replicas == pytest.approx(6000 * 2.0 / 4000 / 0.75)


def test_a_partition_without_an_owner_counts_from_its_commit_or_beginning() -> None:
    answers = Answers((answer((0, 1000)),), 100.0)
    figure = figures().update(answers, ends(100.0, 1000, 1000, 1000, committed={1: 400}), None, 100.0)
    assert figure.lag_records == 0 + 600 + 1000


def test_unclaimed_entries_of_a_stream_count_once_though_all_report_them() -> None:
    one, other = answer((0, 1000)), answer()
    one.streams.append(pb.Stream(stream="s", model="m", waiting_entries=90, tokens_per_entry=20.0))
    other.streams.append(pb.Stream(stream="s", model="m", waiting_entries=100, tokens_per_entry=20.0))
    other.streams.append(pb.Stream(stream="new", model="m", waiting_entries=5))
    other.streams.append(pb.Stream(stream="s2", model="another", waiting_entries=1000))
    figure = figures().update(Answers((one, other), 100.0), ends(100.0, 1000), None, 100.0)
    assert figure.lag_records == 105
    assert figure.required_replicas == pytest.approx((100 * 20 + 5 * 10) / 30 / 7500)


async def test_without_kafka_the_entries_of_redis_and_calls_make_the_figure() -> None:
    lag = KafkaLag(KafkaSettings(enabled=False))
    redis = answer(other_tokens_per_s=6000.0)
    redis.streams.append(pb.Stream(stream="s", model="m", waiting_entries=100, tokens_per_entry=20.0))
    model = figures()
    for at_s in (100.0, 105.0):
        figure = model.update(Answers((redis,), at_s), await lag.read(at_s), None, at_s)
        assert figure.lag_records == 100
        assert figure.required_replicas == pytest.approx((6000 + 100 * 20 / 30) / 7500)


def test_where_two_claim_a_partition_the_one_who_is_further_counts() -> None:
    assert positions([answer((0, 5)), answer((0, 7), (1, 2))]) == {(TOPIC, 0): 7, (TOPIC, 1): 2}
    assert positions([answer((0, 7)), answer((0, 5))]) == {(TOPIC, 0): 7}


def test_a_growing_topic_is_demand_even_when_nobody_fetches() -> None:
    model = figures()
    found: list[Figure] = []
    for second in range(0, 30, 5):
        answers = Answers((answer((0, 0), tokens_per_record=30.0),), float(second))
        found.append(model.update(answers, ends(float(second), 1000 * second), None, float(second)))
    arrivals, backlog = 1000 * 30, 25_000 * 30
    assert found[-1].required_replicas == pytest.approx((arrivals + backlog / 30) / 7500, rel=0.01)


@pytest.mark.parametrize("window_s", [2.0, 20.0])
def test_a_step_of_arrivals_is_seen_whole_only_once_the_window_has_passed(window_s: float) -> None:
    model, step_s = figures(window_s), 30
    found: list[float] = []
    for second in range(60):
        end = 750 * max(0, second - step_s)  # of 10 tokens: one pod's work each second, and all of it is taken
        answers = Answers((answer((0, end)),), float(second))
        found.append(model.update(answers, ends(float(second), end), None, float(second)).required_replicas)
    whole = next(second for second, required in enumerate(found) if required > 0.999)
    assert whole - step_s == window_s


def test_the_demand_of_all_aggregators_is_summed_and_each_pod_counts_once() -> None:
    answers = Answers(tuple(answer((n, 0), other_tokens_per_s=7500.0) for n in range(4)), 0.0)
    assert figures().update(answers, ends(0.0, 0, 0, 0, 0), None, 0.0).required_replicas == pytest.approx(4.0)


def test_two_models_on_one_topic_get_what_each_is_sent() -> None:
    shares = TopicShares({"m": [TOPIC], "n": []})
    models = {
        name: ModelFigures(name, shares, POLICY, first_tokens_per_record=10.0, arrival_window_s=20.0) for name in "mn"
    }
    replica = pb.Replica(address="a", token_budget=500, step_time_s=0.05)
    demand = [
        pb.ModelDemand(model=name, kafka_tokens_per_s=10_000.0, tokens_per_record=length, replicas=[replica])
        for name, length in (("m", 10.0), ("n", 40.0))
    ]
    found: dict[str, Figure] = {}
    for second in range(0, 30, 5):
        end = 1250 * second  # 1,000 records a second of 10 tokens for one, 250 of 40 for the other
        owned = [pb.Partition(topic=TOPIC, partition=0, fetch_position=max(0, end - 300), model="m")]
        answers = Answers((pb.GetDemandResponse(models=demand, partitions=owned),), float(second))
        for name, model in models.items():
            found[name] = model.update(answers, ends(float(second), end), None, float(second))
    assert {name: figure.lag_records for name, figure in found.items()} == {"m": 240, "n": 60}
    arrivals, backlog = 10_000, 2400
    for figure in found.values():
        assert figure.required_replicas == pytest.approx((arrivals + backlog / 30) / 7500)


def test_shares_hold_while_nothing_is_fetched_and_start_as_the_topics_own() -> None:
    shares = TopicShares({"m": [TOPIC], "n": [], "o": ["other"]})
    assert [shares.of(name, []) for name in "mno"] == [{TOPIC: 1.0}, {TOPIC: 0.0, "other": 0.0}, {"other": 1.0}]
    fetched = [pb.ModelDemand(model=name, kafka_tokens_per_s=30.0, tokens_per_record=10.0) for name in "mn"]
    for answers in ([pb.GetDemandResponse(models=fetched)], [], [pb.GetDemandResponse()]):
        assert [shares.of(name, answers) for name in "mn"] == [{TOPIC: 0.5}, {TOPIC: 0.5, "other": 0.5}]


def test_a_record_is_as_long_as_the_aggregators_find_them_on_average() -> None:
    answers = Answers((answer((0, 0), tokens_per_record=1.0), answer(tokens_per_record=3.0), answer()), 0.0)
    figure = figures().update(answers, ends(0.0, 30_000), None, 0.0)
    assert figure.required_replicas == pytest.approx(30_000 * 2.0 / 30 / 7500)


@pytest.mark.parametrize(("ready", "knows"), [(2, True), (1, False)])
def test_a_figure_is_as_old_as_its_oldest_input_and_knows_newly_come_pods(ready: int, *, knows: bool) -> None:
    figure = figures().update(Answers((answer((0, 0)),), 90.0), ends(85.0, 0), Replicas(2, ready, 95.0), 100.0)
    assert (figure.measured_s, figure.saw_scale_up) == (85.0, knows)


def test_while_pods_are_pending_the_backlog_is_held_as_of_their_request() -> None:
    model = figures()
    found = [
        model.update(
            Answers((answer((0, 0), held_tokens=held, other_tokens_per_s=7500.0),), second),
            ends(second, 0),
            Replicas(2, ready, second),
            second,
        ).required_replicas
        for second, held, ready in ((0.0, 45_000, 2), (5.0, 90_000, 1), (10.0, 90_000, 2))
    ]
    assert found == [pytest.approx(1.2), pytest.approx(1.2), pytest.approx(1.4)]


@pytest.mark.parametrize(("above_it", "required"), [(0, 1.5), (1, 1.0)])
def test_pressure_asks_for_more_once_no_replica_above_its_floor_can_help(above_it: int, required: float) -> None:
    pressed = answer((0, 0), other_tokens_per_s=7500.0, p99_s=0.45, slo_s=0.3)
    pressed.models[0].replicas[0].budget_at_floor = True
    pressed.models[0].replicas.extend([pb.Replica(address="b", token_budget=500, step_time_s=0.05)] * above_it)
    figure = figures().update(Answers((pressed,), 0.0), ends(0.0, 0), None, 0.0)
    assert figure.required_replicas == pytest.approx(required)


def test_pending_requests_are_backlog_and_wake_a_model_without_pods() -> None:
    asleep = pb.GetDemandResponse(models=[pb.ModelDemand(model="m", pending_requests=3)])
    replicas = Replicas(0, 0, 0.0)
    assert figures().update(Answers((asleep,), 0.0), ends(0.0, 0), replicas, 0.0).required_replicas == 1.0


@pytest.mark.parametrize("stale", ["aggregators", "kafka", "replicas"])
def test_an_old_input_is_an_error(stale: str) -> None:
    old = {"aggregators": 100.0, "kafka": 100.0, "replicas": 100.0} | {stale: 79.0}
    with pytest.raises(StaleInputError):
        figures().update(
            Answers((answer((0, 0)),), old["aggregators"]),
            ends(old["kafka"], 0),
            Replicas(1, 1, old["replicas"]),
            100.0,
        )


def test_replicas_that_cannot_say_what_they_do_are_left_out() -> None:
    told = answer((0, 0), other_tokens_per_s=7500.0)
    told.models[0].replicas.append(pb.Replica(address="b", token_budget=0, step_time_s=0.05))
    told.models[0].replicas.append(pb.Replica(address="c", token_budget=500, step_time_s=0.0))
    assert figures().update(Answers((told,), 0.0), ends(0.0, 0), None, 0.0).required_replicas == pytest.approx(1.0)
