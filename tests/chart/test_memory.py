"""The chart lets an aggregator have the memory that its settings may take."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from aggregator.settings.aggregator import AggregatorSettings

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
BATCH, PARTITIONS = 128 * MIB, 250


def test_the_limit_of_memory_covers_the_formula_by_the_defaults() -> None:
    settings = AggregatorSettings()
    values = yaml.safe_load((ROOT / "helm/tokenbatch/values.yaml").read_text())
    limit = values["aggregator"]["resources"]["limits"]["memory"]
    assert limit == "1Gi"
    needed = 300 * MIB + 1.25 * settings.limits.memory_bytes + BATCH + 24 * settings.batching.max_held_tokens
    assert needed + PARTITIONS * MIB <= 1024 * MIB


def test_the_formula_in_the_docs_is_the_one_that_is_tested() -> None:
    page = (ROOT / "docs/operate.md").read_text()
    assert re.search(
        r"300 MiB \+ 1\.25 × limits\.memory_bytes \+ 128 MiB \+ 24 bytes × batching\.max_held_tokens", page
    )
