"""The settings of generation."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, PositiveFloat

from k8s.pod.settings import Group


class MemoryForm(StrEnum):
    """The tokens that a sequence counts for: all at its end, as in the paper, or those that it holds while it runs.

    Off, vLLM admits by the blocks that are free, and preempts when they run out.
    """

    OFF = "off"
    LENGTH = "length"
    OCCUPANCY = "occupancy"


class GenerationSettings(Group):
    """A model that generates."""

    time_per_output_token_s: PositiveFloat = Field(
        default=0.1,
        description="target for the time between two tokens of one text; prompts are computed in parts to keep it",
    )
    memory_limit: MemoryForm = Field(
        default=MemoryForm.OFF,
        description="how many sequences run at once. off: as many as vLLM admits; length and occupancy: as many as"
        " rarely overflow the KV cache, predicted from the final lengths of earlier sequences, or from what they held"
        " while they ran",
    )
