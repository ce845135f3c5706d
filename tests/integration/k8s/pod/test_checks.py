"""What `--check` finds, for every process: files, folders, ports, names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s.pod import checks
from k8s.pod.checks import Findings
from k8s.pod.errors import StartError
from k8s.pod.settings import Group


class Tls(Group):
    cert_file: Path | None = None
    client_ca_file: Path | None = None


class Broker(Group):
    tls: Tls = Tls()


class Settings(Group):
    tls: Tls = Tls()
    cache: Path = Path("/proc/no")
    poison_while: Path | None = Path("/not/there")
    brokers: tuple[Broker, ...] = ()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield int(listening.getsockname()[1])


def told(capsys: pytest.CaptureFixture[str], findings: Findings) -> list[str]:
    """The problems that are printed at the end."""
    assert findings.ended == 1
    *problems, _ = capsys.readouterr().out.splitlines()
    return [line.removeprefix("problem: ") for line in problems]


def test_nothing_found_is_ok(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    findings = Findings()
    checks.files(findings, Settings(cache=tmp_path / "made" / "later"))
    checks.ports(findings, {"grpc.bind": "127.0.0.1:0", "http.bind": ""}, "127.0.0.1:0")
    assert findings.ended == 0
    assert capsys.readouterr().out == "ok\n"
    assert not [*tmp_path.iterdir()]


def test_each_file_and_folder_is_told_by_its_setting(capsys: pytest.CaptureFixture[str]) -> None:
    missing = Tls(cert_file=Path("/not/there"), client_ca_file=Path("/"))
    findings = Findings()
    checks.files(findings, Settings(tls=missing, brokers=(Broker(tls=missing),)), without=("brokers[0].tls.cl",))
    assert told(capsys, findings) == [
        "tls.cert_file: /not/there cannot be read (No such file or directory): is the path right?",
        "tls.client_ca_file: / cannot be read (Is a directory): is the path right?",
        "cache: /proc/no cannot be written to (No such file or directory): name a folder of this user's",
        "brokers[0].tls.cert_file: /not/there cannot be read (No such file or directory): is the path right?",
    ]


def test_a_port_that_another_program_or_setting_has_is_told(
    capsys: pytest.CaptureFixture[str], taken_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        free = int(listening.getsockname()[1])
    findings, bind = Findings(), f"127.0.0.1:{free}"
    checks.ports(findings, {"grpc.bind": f"127.0.0.1:{taken_port}", "http.bind": bind}, bind)
    reason = "cannot be bound (Address already in use)"
    assert told(capsys, findings) == [
        f"grpc.bind: 127.0.0.1:{taken_port} {reason}: is another program using the port?",
        f"telemetry.metrics_bind: {bind} {reason}: http.bind has this port too",
    ]
    first = tmp_path / "cmdline"  # a check in the pod of a server finds that server's ports
    first.write_bytes(b"python\0-m\0aggregator\0--config\0a.yaml\0")
    monkeypatch.setattr(checks, "_FIRST_PROCESS", first)
    findings = Findings()
    checks.ports(findings, {"grpc.bind": f"127.0.0.1:{taken_port}"}, "127.0.0.1:0")
    assert findings.ended == 0
    assert capsys.readouterr().out.startswith("warning: the process of this container has the ports of grpc.bind\n")


async def test_a_server_that_is_not_there_is_told_with_its_setting(taken_port: int) -> None:
    await checks.answers("models[0].servers[0]", "127.0.0.1", taken_port)
    with pytest.raises(StartError, match=r"^nothing answers at 127\.0\.0\.1:1 \(models\[0\]\.servers\[0\]\): "):
        await checks.answers("models[0].servers[0]", "127.0.0.1", 1)
    with pytest.raises(StartError, match=r"^peers\[0\]: nowhere\.invalid cannot be resolved \("):
        await checks.answers("peers[0]", "nowhere.invalid", 1)


def test_collectors_that_cannot_be_and_those_that_are_silent_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = Findings()
    monkeypatch.setenv("TOKENBATCH_KAFKA__BROKERS", "a:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    checks.environment(findings)
    warnings = capsys.readouterr().out.splitlines()
    assert warnings[0].startswith("warning: no process reads TOKENBATCH_KAFKA__BROKERS: ")
    assert warnings[1].startswith("warning: OTEL_EXPORTER_OTLP_ENDPOINT: nothing answers at 127.0.0.1:1 (")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://")
    checks.environment(findings)
    assert told(capsys, findings)[-1].startswith("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not an address of a collector")
