"""Read a Kubernetes label selector, as the autoscaler sends it with a metric."""

from __future__ import annotations

import re

_EQUALITY = re.compile(r"\s*([\w./-]+)\s*==?\s*([\w.-]*)\s*")


class BadSelector(ValueError):
    """It is no list of labels with a value each."""


def labels_of(selector: str) -> dict[str, str]:
    """The labels that a selector such as `model=m,scaler=s` asks for. Raises BadSelector."""
    labels: dict[str, str] = {}
    for requirement in selector.split(",") if selector.strip() else ():
        match = _EQUALITY.fullmatch(requirement)
        if match is None:
            raise BadSelector(f"{requirement!r}: a metric is selected by label=value alone")
        labels[match[1]] = match[2]
    return labels
