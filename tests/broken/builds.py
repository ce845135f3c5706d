"""All broken builds."""

from __future__ import annotations

from collections.abc import Mapping

from tests.broken import generation_builds, kafka_builds, modelserver_builds, pipeline_builds
from tests.broken.build import Build

BUILDS: tuple[Build, ...] = (
    *kafka_builds.BUILDS,
    *pipeline_builds.BUILDS,
    *generation_builds.BUILDS,
    *modelserver_builds.BUILDS,
)
BY_NAME: Mapping[str, Build] = {build.name: build for build in BUILDS}
