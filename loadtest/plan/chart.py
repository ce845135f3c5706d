"""Read from the chart's values how it scales: replicas, the autoscaler's behavior, the demand formula's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from aggregator.wings.scaler.measuring.demand import DemandPolicy
from loadtest.simulate.scaling import Autoscale, HpaPolicy

DEFAULTS = Path(__file__).parents[2] / "helm/tokenbatch/values.yaml"
_DEMAND = ("drain_s", "utilisation", "peak_hold_s", "max_age_s")


def scaling(values: Path | None, start_s: float) -> Autoscale:
    """How a model's servers are scaled by the chart's values, under the user's own where a file is given.

    Raises OSError, and ValueError for values that are no mapping or policies that cannot be followed.
    """
    merged = _merged(_read(DEFAULTS), _read(values) if values is not None else {})
    found = merged["modelServer"]["autoscaling"]
    up, down = found["behavior"]["scaleUp"], found["behavior"]["scaleDown"]
    hpa = HpaPolicy(
        min_replicas=max(1, found["minReplicas"]),
        max_replicas=found["maxReplicas"],
        up_window_s=up.get("stabilizationWindowSeconds", 0),
        down_window_s=down.get("stabilizationWindowSeconds", 300),
        up_pods=_value(up["policies"], "Pods"),
        up_share=_value(up["policies"], "Percent") / 100,
        down_pods=_value(down["policies"], "Pods"),
        down_share=_value(down["policies"], "Percent") / 100,
        policy_period_s=max(policy["periodSeconds"] for policy in up["policies"]),
        down_period_s=max(policy["periodSeconds"] for policy in down["policies"]),
    )
    policy = merged["scaler"]["config"].get("policy", {})
    demand = replace(DemandPolicy(), **{name: policy[name] for name in _DEMAND if name in policy})
    return Autoscale(hpa, demand, start_s=start_s)


def _value(policies: Sequence[Mapping[str, Any]], kind: str) -> int:
    """The largest change of a kind, 0 where none is allowed."""
    return max((int(policy["value"]) for policy in policies if policy["type"] == kind), default=0)


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is no YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{file} holds no values of the chart")  # noqa: TRY004 - what is wrong is the file
    return values


def _merged(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm lays one file over the other: mappings key by key, all else whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
