"""Every alert fires on what it is for, stays silent on what is well, and every query of the dashboard is one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[2] / "helm/tokenbatch"
RULES = CHART / "files/alerts.yaml"
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]}
NS = 'namespace="ns"'
MINUTES = 45


@dataclass(frozen=True, slots=True)
class Case:
    """Series in trouble, the labels that the alert then has, and the same series when all is well."""

    trouble: dict[str, str]
    labels: dict[str, str]
    well: dict[str, str]
    after: str = "40m"
    shared: dict[str, str] = field(default_factory=dict[str, str])


def total(per_minute: float) -> str:
    return f"0+{per_minute}x{MINUTES}"


def level(value: float, per_minute: float = 0.0) -> str:
    return f"{value}{per_minute:+}x{MINUTES}"


LAG = f'tokenbatch_consumer_lag{{{NS},topic="t",partition="0"}}'
PAUSED = f'tokenbatch_consumer_paused{{{NS},topic="t",partition="0"}}'
SPAN = f'tokenbatch_consumer_uncommitted_span{{{NS},topic="t",partition="0"}}'
OK = f'tokenbatch_requests_total{{{NS},source="grpc",code="OK"}}'
READY = {f'tokenbatch_replica_state{{{NS},model="m",replica="{replica}",state="idle"}}': level(1) for replica in "ab"}
REPLICAS = f'tokenbatch_required_replicas{{{NS},model="m"}}'


def counter(name: str, labels: str, trouble: float, well: float, **alert: str) -> Case:
    series = f"{name}{{{','.join(filter(None, (NS, labels)))}}}"
    return Case({series: total(trouble)}, {"namespace": "ns", **alert}, {series: total(well)})


CASES = {
    "TokenbatchRecordsLost": counter("tokenbatch_consumer_lost_total", 'topic="t"', 5, 0, topic="t"),
    "TokenbatchNoModelServer": Case(
        {}, {"namespace": "ns", "model": "m"}, READY, shared={REPLICAS: level(1), PAUSED: level(1)}
    ),
    "TokenbatchLagGrows": Case({LAG: level(2000, 100)}, {"namespace": "ns", "topic": "t"}, {LAG: level(90_000, -100)}),
    "TokenbatchCommitHeld": Case(
        {SPAN: level(30_000)}, {"namespace": "ns", "topic": "t", "partition": "0"}, {SPAN: level(500)}
    ),
    "TokenbatchCommitsFail": counter("tokenbatch_commit_failures_total", "", 2, 0.1),
    "TokenbatchClockSkew": counter("tokenbatch_consumer_ahead_total", 'topic="t"', 5, 0),
    "TokenbatchRebalances": counter("tokenbatch_consumer_rebalances_total", 'pod="a"', 1, 0.1),
    "TokenbatchDeadLetters": counter("tokenbatch_dead_letters_total", 'code="INTERNAL"', 1, 0, code="INTERNAL"),
    "TokenbatchErrors": Case(
        {f'tokenbatch_requests_total{{{NS},source="grpc",code="UNAVAILABLE"}}': total(60)},
        {"namespace": "ns", "source": "grpc"},
        {f'tokenbatch_requests_total{{{NS},source="grpc",code="INVALID_ARGUMENT"}}': total(600)},
        shared={OK: total(600)},
    ),
    "TokenbatchSlow": Case(
        {f'tokenbatch_slo_violations_total{{{NS},source="grpc"}}': total(60)},
        {"namespace": "ns", "source": "grpc"},
        {f'tokenbatch_slo_violations_total{{{NS},source="grpc"}}': total(1)},
        shared={OK: total(600)},
    ),
    "TokenbatchReplicasShort": Case(
        {REPLICAS: level(4)}, {"namespace": "ns", "model": "m"}, {REPLICAS: level(1.4)}, shared=READY
    ),
    "TokenbatchScalerBlind": Case(
        {f'tokenbatch_scaler_input_age_seconds{{{NS},model="m"}}': level(0, 60)},
        {"namespace": "ns", "model": "m"},
        {f'tokenbatch_scaler_input_age_seconds{{{NS},model="m"}}': level(5)},
    ),
    "TokenbatchEngineFails": counter("tokenbatch_engine_failed_steps_total", 'pod="p"', 1, 0.1, pod="p"),
    "TokenbatchEngineRebuilt": counter("tokenbatch_engine_rebuilds_total", 'pod="p"', 0.1, 0, pod="p"),
    "TokenbatchTokenizerDiffers": counter("tokenbatch_tokenizer_differences_total", "", 1, 0),
}


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def check(folder: Path, alert: str, series: dict[str, str], at: str, labels: dict[str, str] | None) -> None:
    """Let time pass over these series; the alert must fire with these labels, or not at all."""
    severity = ALERTS[alert]["labels"]["severity"]
    expected: list[dict[str, Any]] = [] if labels is None else [{"exp_labels": {"severity": severity, **labels}}]
    rule = {key: value for key, value in ALERTS[alert].items() if key != "annotations"}
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [rule]}]}), encoding="utf-8")
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": expected}],
    }
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    promtool("test", "rules", str(folder / "test.yaml"))


def test_there_is_a_case_for_every_alert() -> None:
    assert CASES.keys() == ALERTS.keys()


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_on_what_it_is_for(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    check(tmp_path, alert, {**case.shared, **case.trouble}, case.after, case.labels)


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_stays_silent_while_all_is_well(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    check(tmp_path, alert, {**case.shared, **case.well}, case.after, None)


OTHERS = {  # another model's servers, and another release's
    f'tokenbatch_replica_state{{{NS},model="n",replica="c",state="idle"}}': level(1),
    f'tokenbatch_required_replicas{{{NS},model="n"}}': level(1),
    'tokenbatch_replica_state{namespace="other",model="m",replica="a",state="idle"}': level(1),
    'tokenbatch_required_replicas{namespace="other",model="m"}': level(1),
}
OTHERS_ELSEWHERE = {series: values for series, values in OTHERS.items() if 'namespace="other"' in series}


@pytest.mark.parametrize("alert", ["TokenbatchNoModelServer", "TokenbatchReplicasShort"])
def test_servers_of_another_model_or_release_are_none_of_this_one(alert: str, tmp_path: Path) -> None:
    check(tmp_path, alert, OTHERS | {REPLICAS: level(2)}, "40m", {"namespace": "ns", "model": "m"})


@pytest.mark.parametrize("alert", ["TokenbatchNoModelServer", "TokenbatchReplicasShort"])
def test_a_model_that_nobody_asks_for_may_be_without_servers(alert: str, tmp_path: Path) -> None:
    check(tmp_path, alert, OTHERS | {REPLICAS: level(0), PAUSED: level(1)}, "40m", None)


@pytest.mark.parametrize(("there", "labels"), [({}, {"namespace": "ns"}), (READY, None), ({REPLICAS: level(0)}, None)])
def test_without_a_scaler_a_namespace_is_asked_whether_it_has_any_server(
    there: dict[str, str], labels: dict[str, str] | None, tmp_path: Path
) -> None:
    check(tmp_path, "TokenbatchNoModelServer", OTHERS_ELSEWHERE | {PAUSED: level(1)} | there, "40m", labels)


def test_the_rules_are_rules() -> None:
    promtool("check", "rules", str(RULES))


def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    dashboard = json.loads((CHART / "files/dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    rules = [
        {
            "record": f"panel:{number}",
            "expr": query.replace("$__rate_interval", "1m")
            .replace("$namespace", "ns")
            .replace("$release", ".*")
            .replace("$model", "m"),
        }
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}), encoding="utf-8")
    promtool("check", "rules", str(file))
