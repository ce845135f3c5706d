"""Label selectors as the autoscaler sends them."""

from __future__ import annotations

import pytest

from k8s.scaler.external_metrics.server import BadSelector, labels_of


@pytest.mark.parametrize(
    ("selector", "labels"),
    [
        ("", {}),
        ("model=m", {"model": "m"}),
        ("model==m", {"model": "m"}),
        ("model = m , a.b/zone=", {"model": "m", "a.b/zone": ""}),
    ],
)
def test_a_selector_says_which_labels_a_series_must_have(selector: str, labels: dict[str, str]) -> None:
    assert labels_of(selector) == labels


@pytest.mark.parametrize("selector", ["model=m=n", "model!=m", "model in (m)", "model", "!model", "model>3", "=m"])
def test_anything_else_is_refused(selector: str) -> None:
    with pytest.raises(BadSelector, match="label=value"):
        labels_of(selector)
