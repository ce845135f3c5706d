"""Measure a model's saturation profile and write it as files, without serving."""

from __future__ import annotations

import logging
from pathlib import Path

from modelserver import profile_figure, profile_store
from modelserver.engines import build
from modelserver.model_files import ModelFiles
from modelserver.profile import measure
from modelserver.settings import ModelServerSettings
from modelserver.startup import profile_owner, sweep_plan
from modelserver.warm_up import warm_up

_log = logging.getLogger(__name__)


def write_profile(
    settings: ModelServerSettings, files: ModelFiles, out: Path, peak_flops_per_s: float | None = None
) -> None:
    """Write `profile.json`, `profile.csv` and `profile.svg` into the folder `out`. Raises CannotStart."""
    engine = build(settings, files).engine
    warm_up(engine)
    owner = profile_owner(settings, engine.facts, files)
    profile = measure(engine, owner, sweep_plan(settings, engine.facts))
    out.mkdir(parents=True, exist_ok=True)
    profile_store.save(profile, out / "profile.json")
    profile_store.save_csv(profile, out / "profile.csv")
    flops = profile_figure.flops_per_token(files.path)
    work = profile_figure.Work(flops, peak_flops_per_s) if flops is not None else None
    (out / "profile.svg").write_text(profile_figure.draw(profile, work), encoding="utf-8")
    _log.info("wrote the profile", extra={"folder": str(out)})
    engine.close()
