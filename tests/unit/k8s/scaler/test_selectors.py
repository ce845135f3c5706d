"""Label selectors as Kubernetes has them."""

from __future__ import annotations

import pytest

from k8s.scaler.selectors import BadSelector, matches


@pytest.mark.parametrize(
    ("selector", "meets"),
    [
        ("", True),
        ("model=m", True),
        ("model==m", True),
        ("model = m , zone=a", True),
        ("model!=m", False),
        ("model!=x,zone=a", True),
        ("model in (m, n)", True),
        ("model in (x,y),zone=a", False),
        ("model notin (x,y)", True),
        ("model", True),
        ("!model", False),
        ("!other", True),
        ("other=m", False),
        ("other!=m", True),
    ],
)
def test_selectors_select(selector: str, meets: bool) -> None:
    assert matches(selector, {"model": "m", "zone": "a"}) is meets


@pytest.mark.parametrize("selector", ["model=m=n", "model in m", "a b", "model>3", "=m"])
def test_what_is_no_selector_is_said_to_be_none(selector: str) -> None:
    with pytest.raises(BadSelector):
        matches(selector, {"model": "m"})
