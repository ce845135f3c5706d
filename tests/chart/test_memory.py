"""The chart lets an aggregator have the memory that its settings may take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aggregator.all_settings import AllSettings
from tests.chart.rendering import CHART, VALUES, Object, find, render, run

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
BATCH, STREAMS, PARTITIONS = 128 * MIB, 192 * MIB, 72
LEDGER = "aggregator.config.limits.memory_bytes"


def needed_mib(memory_bytes: int, held_tokens: int, cache_bytes: int = 0) -> int:
    size_bytes = 300 * MIB + 1.25 * (memory_bytes + cache_bytes) + BATCH + STREAMS + 24 * held_tokens + PARTITIONS * MIB
    return -int(-size_bytes // MIB)


def limits(*arguments: str, case: str = "default", version: int = 4) -> Object:
    pods = find(render(case, *arguments, version=version), "Deployment", "t-tokenbatch-aggregator")
    return dict(pods["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"])


def notes(*arguments: str) -> str:
    values = ("--values", str(VALUES / "default.yaml"))
    return run(4, "install", "t", str(CHART), "--dry-run=client", *values, *arguments).stdout.partition("NOTES:")[2]


def test_the_limit_of_memory_is_that_of_the_formula_by_the_defaults() -> None:
    settings = AllSettings()
    assert needed_mib(settings.limits.memory_bytes, settings.batching.max_held_tokens) == 1024
    assert limits() == {"memory": "1024Mi"}


@pytest.mark.parametrize("version", [3, 4])
def test_the_limit_of_memory_follows_the_ledger_and_the_queue(version: int) -> None:
    held = "aggregator.config.batching.max_held_tokens=4000000"
    found = limits("--set", f"{LEDGER}=1073741824,{held}", version=version)
    assert found == {"memory": f"{needed_mib(1 << 30, 4_000_000)}Mi"}


def test_the_limit_of_memory_has_room_for_the_cache() -> None:
    settings = AllSettings()
    found = limits("--set", "aggregator.config.batching.cache_bytes=1073741824")
    needed = needed_mib(settings.limits.memory_bytes, settings.batching.max_held_tokens, 1 << 30)
    assert found == {"memory": f"{needed}Mi"}


def test_a_limit_that_is_given_stands_and_others_beside_the_computed_one() -> None:
    assert limits("--set", "aggregator.resources.limits.memory=3Gi") == {"memory": "3Gi"}
    assert limits("--set-string", "aggregator.resources.limits.cpu=2") == {"memory": "1024Mi", "cpu": "2"}


@pytest.mark.parametrize(
    ("asked", "limit"), [("3Gi", "3Gi"), ("1024Mi", "1024Mi"), ("1000Mi", "1024Mi"), ("2e9", "1024Mi")]
)
def test_the_limit_of_memory_is_no_less_than_what_is_asked_for(asked: str, limit: str) -> None:
    assert limits("--set-string", f"aggregator.resources.requests.memory={asked}") == {"memory": limit}
    assert limits("--set-json", "aggregator.resources.requests=null") == {"memory": "1024Mi"}


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ("1Gi", False),
        ("1.5Gi", False),
        ("1100M", False),
        ("2e9", False),
        ("1000Mi", True),
        ("1G", True),
        ("0.5Gi", True),
    ],
)
def test_whoever_installs_hears_of_a_limit_below_the_formula(given: str, warned: bool) -> None:
    said = notes("--set-string", f"aggregator.resources.limits.memory={given}")
    assert "Test it" in said
    assert ("but by its settings an aggregator may take 1024Mi" in said) is warned


def test_whoever_raises_the_ledger_alone_is_told_nothing() -> None:
    assert "WARNING" not in notes("--set", f"{LEDGER}=1073741824")


def test_the_formula_in_the_docs_is_the_one_that_is_tested() -> None:
    page = (ROOT / "docs/operate.md").read_text()
    assert re.search(
        r"300 MiB \+ 1\.25 × limits\.memory_bytes \+ 128 MiB \+ 192 MiB \+ 24 bytes × batching\.max_held_tokens", page
    )
