from __future__ import annotations

import pytest

from aggregator.settings.aggregator import AggregatorSettings
from aggregator.wings.scaler.settings import ScalerSettings
from k8s.pod import telemetry
from k8s.pod.addresses import check_url, split_address, split_server, split_servers
from k8s.pod.errors import StartError
from k8s.pod.settings import Group, SettingsError, load
from modelserver.settings import ModelServerSettings
from tests.support.commands import ended

BROKEN = ["localhost:", "localhost", "localhost:port", "localhost:65536", "localhost:-1", "localhost:\u0669", "a b:1"]
BROKEN += [
    "http://localhost:1",
    "user:hunter2@localhost:1",
    "a:b:1",
    "[::1",
    "[::1]",
    "[a]b:1",
    "localhost: 1",
    "a..b:1",
    ".:1",
    f"{'a' * 64}.b:1",
    ":",
    "",
]


@pytest.mark.parametrize("address", BROKEN)
def test_what_is_no_address_is_refused_with_a_sentence(address: str) -> None:
    with pytest.raises(StartError, match="is not host:port") as refused:
        split_address(address)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "split"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("kafka_1.team-a:0", ("kafka_1.team-a", 0)),
        (":50051", ("", 50051)),
        ("svc.team.:1", ("svc.team.", 1)),
        ("[::1]:65535", ("::1", 65535)),
        (":::8443", ("::", 8443)),
    ],
)
def test_host_and_port_are_split(address: str, split: tuple[str, int]) -> None:
    assert split_address(address) == split


@pytest.mark.parametrize("address", [*BROKEN, ":9092", "localhost:0"])
def test_an_address_to_connect_to_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(StartError, match="is not host:port"):
        split_server(address)


def test_servers_are_separated_by_commas() -> None:
    assert split_servers("a:1, [::1]:2,") == [("a", 1), ("::1", 2)]
    with pytest.raises(StartError, match="there is no address"):
        split_servers(" , ")


SETTINGS: list[tuple[type[Group], str, str]] = [
    (AggregatorSettings, "KAFKA__BOOTSTRAP_SERVERS", "{}"),
    (AggregatorSettings, "KAFKA__BOOTSTRAP_SERVERS", "fine:9092,{}"),
    (AggregatorSettings, "GRPC__BIND", "{}"),
    (AggregatorSettings, "HTTP__BIND", "{}"),
    (AggregatorSettings, "DEMAND__BIND", "{}"),
    (AggregatorSettings, "TELEMETRY__METRICS_BIND", "{}"),
    (AggregatorSettings, "MODELS", '[{{"name": "m", "servers": ["{}"]}}]'),
    (AggregatorSettings, "MODELS", '[{{"name": "m", "servers": ["dns://{}"]}}]'),
    (AggregatorSettings, "MODELS", '[{{"name": "m", "servers": ["k8s://service.namespace.{}"]}}]'),
    (AggregatorSettings, "TENANTS__AGGREGATORS", "dns://{}"),
    (ScalerSettings, "KAFKA__BOOTSTRAP_SERVERS", "{}"),
    (ScalerSettings, "AGGREGATORS__ADDRESSES", '["{}"]'),
    (ScalerSettings, "PEERS", '["{}"]'),
    (ScalerSettings, "API", '{{"bind": "{}"}}'),
    (ScalerSettings, "KEDA__BIND", "{}"),
    (ModelServerSettings, "GRPC__BIND", "{}"),
    (ModelServerSettings, "TELEMETRY__METRICS_BIND", "{}"),
]


@pytest.mark.parametrize("broken", ["localhost:", "localhost:99999"])
@pytest.mark.parametrize(("settings", "name", "value"), SETTINGS)
def test_every_address_in_settings_is_checked(
    monkeypatch: pytest.MonkeyPatch, settings: type[Group], name: str, value: str, broken: str
) -> None:
    monkeypatch.setenv(f"X_{name}", value.format(broken))
    with pytest.raises(SettingsError, match=r"is not (host:port|dns://|k8s://)"):
        load(settings, "X_")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (AggregatorSettings, "GRPC"),
        (ScalerSettings, "API"),
    ],
)
def test_a_port_that_is_not_served_has_no_address(
    monkeypatch: pytest.MonkeyPatch, settings: type[Group], name: str
) -> None:
    monkeypatch.setenv(f"X_{name}", '{"bind": ""}')
    load(settings, "X_")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "variable"),
    [
        ("aggregator", "TOKENBATCH_AGGREGATOR_KAFKA__BOOTSTRAP_SERVERS"),
        ("modelserver", "TOKENBATCH_MODELSERVER_GRPC__BIND"),
        ("modelserver --check", "TOKENBATCH_MODELSERVER_GRPC__BIND"),
    ],
)
def test_a_process_says_it_in_a_line(command: str, variable: str) -> None:
    code, said = ended(*command.split(), **{variable: "localhost:"})
    assert code == 2
    assert said.count("\n") == 1
    assert "'localhost:' is not host:port" in said


@pytest.mark.parametrize("endpoint", ["http://localhost:", "localhost:x", "http://:4317", "https://a:b@c:1"])
def test_a_collector_s_address_is_checked_at_start(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    with pytest.raises(StartError, match="OTEL_EXPORTER_OTLP_ENDPOINT is not an address of a collector"):
        telemetry.start(telemetry.TelemetrySettings(metrics_bind="127.0.0.1:0"), "test")


@pytest.mark.parametrize("endpoint", ["http://collector", "collector:4317/", "https://[::1]:4317", "http://[::1]"])
def test_a_collector_s_address_is_a_url(endpoint: str) -> None:
    check_url("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
