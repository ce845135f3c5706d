"""compose.yaml is what Docker Compose reads, and names images, settings, files and ports that are there.

No container is started: the machine of the tests has no daemon.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator.all_settings import AllSettings
from aggregator.settings.aggregator import ENV_PREFIX
from k8s.pod.settings import SettingsError, load
from modelserver.all_settings import AllModelServerSettings
from modelserver.settings import ENV_PREFIX as MODEL_SERVER_PREFIX
from tests.chart.rendering import ROOT
from tests.chart.test_release import images

FILE = ROOT / "compose.yaml"


def configured(file: Path = FILE) -> subprocess.CompletedProcess[str]:
    """What Docker Compose makes of a file, or says of it."""
    command = [f"{sys.prefix}/bin/docker-compose", "--file", str(file), "config", "--format", "json"]
    env = {name: value for name, value in os.environ.items() if name != "IMAGES"}
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def composed() -> Any:
    done = configured()
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_docker_compose_reads_the_file_and_no_wrong_one(composed: Any, tmp_path: Path) -> None:
    assert {*composed["services"]} == {"kafka", "model-server", "aggregator", "prometheus", "grafana"}
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(FILE.read_text(encoding="utf-8").replace("depends_on:", "depends_upon:"), encoding="utf-8")
    assert "depends_upon" in configured(wrong).stderr


SETTINGS: dict[str, tuple[type[Any], str]] = {
    "aggregator": (AllSettings, ENV_PREFIX),
    "model-server": (AllModelServerSettings, MODEL_SERVER_PREFIX),
}


def loaded(composed: Any, service: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> Any:
    """The settings of a service, as its process reads them. Raises SettingsError for what it does not know."""
    settings, prefix = SETTINGS[service]
    given = composed["services"][service]["environment"]
    assert all(name.startswith(prefix) for name in given)
    for name, value in {**given, **{prefix + name: value for name, value in more.items()}}.items():
        monkeypatch.setenv(name, value)
    return load(settings, prefix)


@pytest.mark.parametrize("service", SETTINGS)
def test_every_setting_of_a_service_is_one_of_the_code(
    composed: Any, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(composed, service, monkeypatch)
    with pytest.raises(SettingsError, match="WINGS"):
        loaded(composed, service, monkeypatch, WINGS="2")


def test_services_meet_at_the_ports_that_they_listen_on(composed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    aggregator, server = (loaded(composed, service, monkeypatch) for service in SETTINGS)
    listens = {
        "aggregator": (aggregator.grpc.bind, aggregator.http.bind, aggregator.telemetry.metrics_bind),
        "model-server": (server.grpc.bind, server.telemetry.metrics_bind),
    }
    ports = {service: {bind.rpartition(":")[2] for bind in binds} for service, binds in listens.items()}
    assert {each["published"] for each in composed["services"]["aggregator"]["ports"]} == ports["aggregator"]
    prometheus = (ROOT / "k8s" / "dev" / "compose" / "prometheus.yaml").read_text(encoding="utf-8")
    scraped = yaml.safe_load(prometheus)["scrape_configs"][0]["static_configs"]
    for address in [*(each["targets"][0] for each in scraped), *aggregator.models[0].servers]:
        service, _, port = address.rpartition(":")
        assert port in ports[service], service
    assert aggregator.models[0].name == server.model.name
    kafka = composed["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"PLAINTEXT://{aggregator.kafka.bootstrap_servers}" in kafka


def test_its_images_are_built_and_its_files_are_there(composed: Any, tmp_path: Path) -> None:
    _, calls = images(tmp_path, "docker", TARGETS="aggregator cpu")
    built = {word for call in calls for word in call.split() if word.startswith("tokenbatch/")}
    asked = {each["image"] for each in composed["services"].values()}
    assert {image for image in asked if image.startswith("tokenbatch/")} == built
    read = set()
    for service in composed["services"].values():
        for volume in service.get("volumes", ()):
            assert Path(volume["source"]).is_file(), volume
            read.add(Path(volume["source"]))
    assert {*(ROOT / "k8s" / "dev" / "compose").iterdir()} < read


def test_podman_compose_finds_every_file_too(composed: Any) -> None:
    """Up to 1.6 it reads no `configs` and no `secrets`, and says nothing: Prometheus would not find its file."""
    assert not composed.keys() & {"configs", "secrets"}
    assert not any(service.keys() & {"configs", "secrets"} for service in composed["services"].values())


def test_every_port_is_this_machine_s_alone(composed: Any) -> None:
    ports = [port for service in composed["services"].values() for port in service.get("ports", ())]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
