"""The images that the Dockerfiles make: small, without what they do not need, and not run as root."""

from __future__ import annotations

import pytest

from tests.cluster import images
from tests.cluster.one_node_cluster import BASE, OneNodeCluster

pytestmark = pytest.mark.short
MOST_BYTES = 300e6


def test_the_aggregators_image_is_small_and_holds_no_torch(lab: OneNodeCluster) -> None:
    base = lab.describe(BASE.removeprefix("localhost/"))
    image = lab.describe(images.AGGREGATOR)
    assert not image.has_torch
    assert image.size_bytes - base.size_bytes < MOST_BYTES


@pytest.mark.parametrize("name", [images.AGGREGATOR, images.SYNTHETIC])
def test_images_run_as_nobody_in_particular(lab: OneNodeCluster, name: str) -> None:
    assert lab.describe(name).user == "10001:10001"


@pytest.mark.parametrize(
    ("name", "package"),
    [(images.AGGREGATOR, "aggregator"), (images.AGGREGATOR, "aggregator scaler"), (images.SYNTHETIC, "modelserver")],
)
def test_commands_start_on_a_read_only_root(lab: OneNodeCluster, name: str, package: str) -> None:
    assert lab.try_out(name, "python", "-m", *package.split(), "--help").startswith(f"usage: python -m {package} ")


def test_the_bill_of_materials_names_every_package_locked_and_of_debian(lab: OneNodeCluster) -> None:
    listed = lab.bill_of_materials(images.AGGREGATOR)
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["metadata"]["component"]["version"] == images.VERSION
    assert images.locked("aggregator.txt") - images.packages(listed, "pypi") == set()
    assert {"libc6", "libssl3t64"} <= {name for name, _ in images.packages(listed, "deb")}
