"""Read a process's monitoring endpoint, as Prometheus and Kubernetes do."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """What an endpoint said at one moment."""

    samples: tuple[Sample, ...]

    @property
    def names(self) -> frozenset[str]:
        """Of all samples, as Prometheus spells them."""
        return frozenset(sample.name for sample in self.samples)

    def value(self, name: str, **labels: str) -> float:
        """The sum of the series with these labels; 0 where there is none."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and all(sample.labels.get(key) == value for key, value in labels.items())
        )


def metrics(address: str) -> Metrics:
    families = text_string_to_metric_families(page(address, "/metrics")[1])
    return Metrics(tuple(sample for family in families for sample in family.samples))


def page(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=_TIMEOUT_S) as response:
            return int(response.status), response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
