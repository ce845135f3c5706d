"""The runbook knows every alert, and what it tells people to look for in the logs is logged."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
_WORDS = re.compile(r"`([a-zA-Z']+(?:,? [a-zA-Z']+){2,}(?:; [a-z' ]+)?)`")


def test_every_log_line_that_is_named_is_logged() -> None:
    files = [file for part in ("aggregator", "k8s", "modelserver") for file in (ROOT / part).rglob("*.py")]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    named = {each for each in _WORDS.findall(RUNBOOK) if not each.startswith("kubectl ")}
    assert len(named) > 10
    assert {each for each in named if each not in code} == {"No space left on device"}  # a broker says that


def test_every_alert_has_its_section() -> None:
    (group,) = yaml.safe_load((ROOT / "helm/tokenbatch/files/alerts.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        assert rule["annotations"]["runbook_url"] == f"RUNBOOK#{rule['alert'].lower()}"
        assert f"\n## {rule['alert']}\n" in RUNBOOK
