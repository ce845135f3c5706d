"""All configuration of the model server: its own settings, and a group of each wing that has some."""

from __future__ import annotations

from modelserver.settings import ModelServerSettings
from modelserver.wings.generation.settings import GenerationSettings
from modelserver.wings.profile.settings import ProfileSettings


class AllModelServerSettings(ModelServerSettings):
    """All settings of the model server."""

    generation: GenerationSettings = GenerationSettings()
    profile: ProfileSettings = ProfileSettings()
