"""Generated files follow the code, and what they name exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from helm.generate.__main__ import FILES, drifted
from helm.generate.dashboard import NUMBERS, ROWS
from tests.chart.rendering import CHART, ROOT

DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((CHART / "files/alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
_OURS = r"(?:tokenbatch|gen_ai|http\.server|rpc\.server|process)"
METRIC = re.compile(r"\b(?:tokenbatch|gen_ai|http_server|rpc_server|process)_[a-z0-9_]+(?=\{|\))")


def test_generated_files_are_what_the_settings_make_them() -> None:
    assert drifted() == []


def test_generated_files_name_no_place_on_a_machine() -> None:
    for path in FILES:
        assert not re.search(r"/(root|work|home)\b", (ROOT / path).read_text(encoding="utf-8")), path


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in ALERTS)


def instruments() -> Iterator[str]:
    """Metric names, as Prometheus has them, of every instrument that the code makes."""
    made = re.compile(rf'"({_OURS}\.[a-z0-9_.]+)",\s*(?:\[uptime\],\s*)?"([^"]+)"')
    for part in ("aggregator", "modelserver", "k8s"):
        for path in (ROOT / part).rglob("*.py"):
            for name, unit in made.findall(path.read_text(encoding="utf-8")):
                base = name.replace(".", "_") + {"s": "_seconds", "By": "_bytes"}.get(unit, "")
                yield from (base + suffix for suffix in ("", "_total", "_bucket", "_sum", "_count"))


def test_every_metric_of_dashboard_and_alerts_is_one_that_the_code_has() -> None:
    named = {name for expression in expressions() for name in METRIC.findall(expression)}
    assert len(named) > 30
    assert named <= set(instruments())


def test_the_dashboard_has_every_panel_and_no_placeholder() -> None:
    graphs = [panel for panel in DASHBOARD["panels"] if panel["type"] == "timeseries"]
    assert [panel["title"] for panel in graphs] == [panel.title for panels in ROWS.values() for panel in panels]
    numbers = [panel["title"] for panel in DASHBOARD["panels"][: len(NUMBERS)]]
    assert numbers == [panel.title for panel in NUMBERS]
    assert all(panel["targets"] for panel in DASHBOARD["panels"] if panel["type"] != "row")
    assert not re.search(r"(?i)todo|placeholder|\bxxx\b|lorem", json.dumps(DASHBOARD))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_leads_to_a_section_of_the_runbook(rule: dict[str, Any]) -> None:
    runbook = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
    headings = {line.lstrip("# ").lower() for line in runbook.splitlines() if line.startswith("## ")}
    place, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert place == "RUNBOOK"
    assert anchor == rule["alert"].lower()
    assert anchor in headings
    assert rule["labels"]["severity"] in {"critical", "warning"}
