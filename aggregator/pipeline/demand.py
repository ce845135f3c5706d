"""The hook for the demand of each model: by default nothing is counted or reported. `wings/scaler` does both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aggregator.admission.models import Model, Models
from aggregator.request.request import KAFKA, Request, Source


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a scaling formula for one model; None: not known."""

    arriving_tokens_per_s: float = 0.0
    backlog_tokens: float = 0.0
    pod_tokens_per_s: float | None = None
    memory_pods: float = 0.0
    required: float | None = None


class Demand:
    """What arrives, whatever becomes of it. The pipeline calls `arrived`, then `counted`.

    `sources`: those that may say what their demand is instead.
    """

    sources: Sequence[Source] = ()

    def arrived(self, source: str, requests: Sequence[Request]) -> None:
        """Note requests of a source, before anything can refuse them."""

    def counted(self, model: Model, requests: Sequence[Request]) -> None:
        """The tokens of these requests are counted; refused ones are not held."""

    def totals(self) -> tuple[int, int]:
        """Inputs that arrived since the start, refused or not, and the tokens of admitted inputs."""
        return 0, 0

    def tokens_per_record(self, name: str, source: str = KAFKA) -> float:
        """Mean tokens of a source's requests for this model."""
        del name, source
        return 0.0

    def terms(self, model: Model) -> Terms:
        """What this aggregator sees of a model's need for servers."""
        del model
        return Terms()

    async def start(self, bind: str) -> str | None:
        """Report at this address; returns the address with its port. Raises StartError."""
        del bind
        return None

    async def stop(self) -> None:
        """End the reports."""


NewDemand = Callable[[Models, Callable[[], float]], Demand]
"""Makes the demand of the models, by a clock (monotonic seconds)."""
