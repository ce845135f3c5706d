"""What the settings of every broker have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from k8s.pod.settings import Group

OTHER_REPLIES = {
    "generate": "generate.replies.v1",
    "rank": "rank.replies.v1",
    "token_vectors": "token_vectors.replies.v1",
}
"""The default destinations of replies without embeddings."""


class IntakeSettings(Group):
    """A topic or stream, and the defaults for fields that its requests leave empty."""

    name: str
    model: str = Field(default="", description="model of requests that name none; empty: the first one configured")
    priority: Literal["interactive", "default", "background"] = Field(
        default="default", description="priority of requests that name none"
    )
    tenant: str = Field(default="", description="tenant of every request that is read here")
    task: Literal["embed", "generate", "rank", "token_vectors"] = Field(
        default="embed",
        description="what its requests ask for: embeddings, generations, ranked documents or a vector a token",
    )


class BrokerSettings(Group):
    """A broker that requests are read from; its senders do not wait."""

    enabled: bool

    @property
    @abstractmethod
    def intakes(self) -> Sequence[IntakeSettings]:
        """The topics or streams that are read."""
