"""Run Prometheus itself on this machine, and ask it."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from typing_extensions import override

from loadtest.stack.child import Child
from loadtest.stack.part import Part, responds
from loadtest.stack.ports import free_ports

_INTERVAL = "1s"
_TIMEOUT_S = 30.0

Series = dict[str, Any]
"""One series of an answer: its labels under `metric`, its latest sample under `value`."""


class Prometheus(Part):
    """One Prometheus that scrapes each second and evaluates a file of rules.

    `pods` are host:port of the processes by what their label `pod` says; their label `namespace` is `namespace`.
    """

    def __init__(self, folder: Path, pods: Mapping[str, str], rules: Path, namespace: str) -> None:
        super().__init__("Prometheus", "Debian has it in the package prometheus.")
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"
        self._folder = folder
        targets = [
            {"targets": [address], "labels": {"namespace": namespace, "pod": pod}} for pod, address in pods.items()
        ]
        self._configuration = {
            "global": {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL},
            "scrape_configs": [{"job_name": "tokenbatch", "static_configs": targets}],
            "rule_files": [str(rules)],
        }

    def query(self, expression: str) -> list[Series]:
        """The series that an expression gives now. Raises urllib.error.HTTPError for one that is none."""
        answer = self._ask("query", query=expression)
        found: list[Series] = answer["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health and last error, as the server evaluates it."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def down(self) -> list[str]:
        """The processes whose last scrape failed, or that were not scraped yet."""
        targets = self._ask("targets")["activeTargets"]
        return [target["labels"]["pod"] for target in targets if target["health"] != "up"]

    @override
    def _spawn(self) -> Child:
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(self._configuration), encoding="utf-8")
        options = {
            "config.file": file,
            "storage.tsdb.path": self._folder / "data",
            "web.listen-address": self._address,
        }
        command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
        return Child(self.name, command, self._folder / "log")

    @override
    def _answers(self) -> bool:
        return responds(self._address, "/-/ready")

    def _ask(self, what: str, **parameters: str) -> dict[str, Any]:
        url = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            answer: dict[str, Any] = json.load(response)
        data: dict[str, Any] = answer["data"]
        return data
