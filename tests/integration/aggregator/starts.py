"""Starts of an aggregator with settings of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from loadtest.stack import constants

PREFIX = "TOKENBATCH_AGGREGATOR_"
PATIENCE_S = 100.0


def environment(**settings: str) -> Mapping[str, str]:
    """The settings as the environment tells them; on ports of their own."""
    told = {"GRPC__BIND": "127.0.0.1:0", "TELEMETRY__METRICS_BIND": "127.0.0.1:0", **settings}
    return {**os.environ, **{PREFIX + name: value for name, value in told.items()}}


def aggregator(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [*constants.command("aggregator"), *arguments]
    return subprocess.run(
        command, env=environment(**settings), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def model(*servers: str, name: str = "all-minilm-l6-v2") -> str:
    addresses = ", ".join(f'"{server}"' for server in servers)
    return f'[{{"name": "{name}", "servers": [{addresses}]}}]'


def topics(name: str, *, create: bool = False) -> Mapping[str, str]:
    return {
        "KAFKA__TOPICS": f'[{{"name": "{name}.requests"}}]',
        "KAFKA__REPLY_TOPIC": f"{name}.replies",
        "KAFKA__CREATE_TOPICS": str(create).lower(),
    }
