"""Fuzz the profiles that a person, or an earlier run, may leave."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from modelserver.errors import CannotStart
from modelserver.wings.profile import store
from modelserver.wings.profile.measure import ProfileOwner, summary
from modelserver.wings.profile.profiler import described
from tests.fuzz.target import Target

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))  # noqa: S108 - memory
_OWNER = ProfileOwner("m", "r", "float32", "synthetic", "1", "cpu")


def check_profile(data: bytes) -> None:
    """A profile that is read can be used, published and kept."""
    file = _FOLDER / "profile.json"
    file.write_bytes(data)
    try:
        profile = store.load(file, _OWNER)
    except CannotStart:
        return
    curve = profile.curve
    assert curve.saturation_point >= 1, "Batches would hold nothing."
    assert all(curve.time_s(tokens) >= 0 for tokens in (0, 1, 10_000)), "A step would take no time that there is."
    assert (profile.threaded_tokens or 0) >= 0, "No step is that small."
    assert all(tokens > 0 and 0 < time_s < math.inf for tokens, time_s in profile.points)
    summary(profile)
    described(profile)
    store.save(profile, _FOLDER / "again.json")
    store.save_csv(profile, _FOLDER / "again.csv")
    assert store.load(_FOLDER / "again.json", _OWNER) == profile


TARGETS = (Target("profile_file", check_profile, max_bytes=8192),)
