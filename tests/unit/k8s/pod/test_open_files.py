from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from k8s.pod import open_files


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (request.param, request.param))


@pytest.mark.parametrize(
    ("limited", "ports", "granted"),
    [
        (1024, 1, 512),
        (1024, 2, 256),
        (1024, 0, 512),
        (256, 2, 64),
        (1, 2, 1),
        (2 * 4096 + 511, 2, 4095),
        (2 * 4096 + 512, 2, 4096),
        (resource.RLIM_INFINITY, 2, 4096),
    ],
    indirect=["limited"],
)
@pytest.mark.usefixtures("limited")
def test_ports_share_what_the_process_does_not_need_itself(ports: int, granted: int) -> None:
    assert open_files.connections(4096, ports) == granted
    assert bool(open_files.shortage(4096, ports)) == (granted < 4096)


@pytest.mark.parametrize("limited", [1024], indirect=True)
@pytest.mark.usefixtures("limited")
def test_a_shortage_says_what_it_costs_and_what_to_do() -> None:
    assert open_files.shortage(4096, 2) == (
        "At most 1024 files may be open, so each port takes 256 connections, not 4096:"
        " raise the hard limit (ulimit -Hn, LimitNOFILE) to 8704"
    )


def test_the_soft_limit_becomes_the_hard_one() -> None:
    program = (
        "import resource; from k8s.pod.open_files import raise_limit; raise_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    limits = 'ulimit -Sn 100 && ulimit -Hn 900 && exec "$@"'
    found = subprocess.check_output(["bash", "-c", limits, "bash", sys.executable, "-c", program], text=True)
    assert found == "(900, 900)\n"
