"""Keep measured profiles as JSON files, and refuse a profile of another model, engine or device."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from modelserver.errors import CannotStart
from modelserver.wings.profile.measure import Profile, ProfileOwner, SweepPlan
from modelserver.wings.profile.saturation import Curve, Rule

_LATER = {"options": "{}", "graphs": ""}
"""Parts of an owner that releases before them did not have, as they are where nothing is set."""
_FORMAT = 1  # rises with a change that older files do not fit
_COUNTS = range(2**32)  # as `Describe` publishes them


def save(profile: Profile, file: Path) -> None:
    """Write a profile as JSON; a reader never sees half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_bytes(json.dumps({"format": _FORMAT, **asdict(profile)}, indent=2).encode() + b"\n")
    part.replace(file)


def save_csv(profile: Profile, file: Path) -> None:
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(("step_tokens", "step_duration_s", "fitted_s", "tokens_per_s"))
        for tokens, time_s in profile.points:
            writer.writerow((tokens, f"{time_s:.9f}", f"{profile.curve.time_s(tokens):.9f}", f"{tokens / time_s:.1f}"))


def load(file: Path, owner: ProfileOwner) -> Profile:
    """A supplied profile. Raises CannotStart when it cannot be read, and when it belongs to something else."""
    try:
        profile = _parsed(json.loads(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CannotStart(f"the profile {file} cannot be read: {type(error).__name__}: {error}") from error
    foreign = [
        f"{field.name} is {getattr(profile.owner, field.name)!r}, not {getattr(owner, field.name)!r}"
        for field in fields(ProfileOwner)
        if getattr(profile.owner, field.name) != getattr(owner, field.name)
    ]
    if foreign:
        raise CannotStart(f"the profile {file} belongs to something else: its {'; its '.join(foreign)}")
    return profile


def cached(folder: Path, owner: ProfileOwner, plan: SweepPlan) -> Profile | None:
    """The profile measured for the same thing, up to the same total, if there is a readable one."""
    try:
        return load(cache_file(folder, owner, plan), owner)
    except CannotStart:
        return None


def cache_file(folder: Path, owner: ProfileOwner, plan: SweepPlan) -> Path:
    """Where the profile of `owner` is kept; without options and graphs where releases before them kept it."""
    owned = {name: value for name, value in asdict(owner).items() if (name, value) not in _LATER.items()}
    key = json.dumps([_FORMAT, owned, plan.max_tokens], sort_keys=True)
    return folder.expanduser() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _parsed(content: dict[str, Any]) -> Profile:
    if content["format"] != _FORMAT:
        raise ValueError(f"format {content['format']}, where {_FORMAT} is understood")
    points = tuple((_count(tokens), float(time_s)) for tokens, time_s in content["points"])
    if any(tokens < 1 or not 0.0 < time_s < math.inf for tokens, time_s in points):
        raise ValueError("a point of it was never measured")
    threaded_tokens = content.get("threaded_tokens")  # releases before it did not keep it
    return Profile(
        owner=ProfileOwner(**content["owner"]),
        curve=_curve(**content["curve"]),
        points=points,
        runs=_count(content["runs"]),
        measured_at=str(content["measured_at"]),
        threaded_tokens=None if threaded_tokens is None else _count(threaded_tokens),
    )


def _count(value: Any) -> int:
    """Raises ValueError, TypeError or OverflowError for what is none."""
    if (count := int(value)) not in _COUNTS:
        raise ValueError(f"{count} is no count")
    return count


def _curve(
    *,
    floor_s: float,
    fixed_s: float,
    per_token_s: float,
    saturation_point: int,
    rule: str,
    max_tokens: int,
    backlog_tokens: int = 0,
    capture_sizes: Sequence[int] = (),
    eager_s: float = 0.0,
) -> Curve:
    """Raises ValueError, TypeError or OverflowError for what no step could follow."""
    times = (float(floor_s), float(fixed_s), float(per_token_s))
    sizes = tuple(sorted(map(_count, capture_sizes)))
    saturation, largest, backlog = map(_count, (saturation_point, max_tokens, backlog_tokens))
    curve = Curve(*times, saturation, Rule(rule), largest, backlog, sizes, float(eager_s))
    if (
        any(not 0.0 <= seconds < math.inf for seconds in (*times, curve.eager_s))
        or not any(times)
        or curve.saturation_point == 0
    ):
        raise ValueError("its curve gives no time that a step could take")
    return curve
