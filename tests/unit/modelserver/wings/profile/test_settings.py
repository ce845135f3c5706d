"""The settings of the profile."""

from __future__ import annotations

from k8s.pod.help import help_text
from modelserver.all_settings import AllModelServerSettings
from modelserver.settings import ENV_PREFIX


def test_help_says_each_of_them() -> None:
    assert help_text(AllModelServerSettings, ENV_PREFIX).count(f"{ENV_PREFIX}PROFILE__") == 3
