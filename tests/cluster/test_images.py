"""The images that the Dockerfiles make: small, without what they do not need, and not run as root."""

from __future__ import annotations

import re

import pytest

from tests.chart.rendering import ROOT
from tests.cluster import images
from tests.cluster.lab import BASE, Lab

pytestmark = pytest.mark.short
MOST_BYTES = 300e6


def test_the_aggregators_image_is_small_and_holds_no_torch(lab: Lab) -> None:
    base = lab.describe(BASE.removeprefix("localhost/"))
    image = lab.describe(images.AGGREGATOR)
    assert not image.has_torch
    assert image.size_bytes - base.size_bytes < MOST_BYTES


@pytest.mark.parametrize("name", [images.AGGREGATOR, images.SYNTHETIC])
def test_images_run_as_nobody_in_particular(lab: Lab, name: str) -> None:
    assert lab.describe(name).user == "10001:10001"


def test_the_bill_of_materials_names_every_locked_package_and_those_of_debian(lab: Lab) -> None:
    listed = lab.bill_of_materials(images.AGGREGATOR)
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["metadata"]["component"]["version"] == images.VERSION
    packages = {
        (each["purl"].partition("/")[0], each["name"].lower(), each["version"])
        for each in listed["components"]
        if "purl" in each
    }
    python = {(re.sub(r"[-_.]+", "-", name), version) for kind, name, version in packages if kind == "pkg:pypi"}
    locked = re.findall(
        r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements/aggregator.txt").read_text("utf-8"), re.MULTILINE
    )
    assert locked
    assert set(locked) - python == set()
    assert {"libc6", "libssl3"} <= {name for kind, name, _ in packages if kind == "pkg:deb"}
