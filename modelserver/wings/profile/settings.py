"""The settings of the saturation profile."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from k8s.pod.settings import Group


class ProfileSettings(Group):
    """The saturation profile: how step time depends on tokens."""

    enabled: bool = Field(default=True, description="measure it at the start")
    file: Path | None = Field(default=None, description="a profile that was measured before, for this model and device")
    cache: Path = Field(
        default=Path("~/.cache/tokenbatch/profiles"), description="folder of the profiles that were measured here"
    )
    budget_s: ClassVar[float] = 15.0
    """Enough for five runs of each size; a start that reads weights takes longer than that."""
