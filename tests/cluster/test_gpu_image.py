"""The model server's image for NVIDIA GPUs: built whole, and all that can be tried of it without a GPU."""

from __future__ import annotations

import pytest

from tests.cluster import images
from tests.cluster.one_node_cluster import OneNodeCluster

pytestmark = pytest.mark.skipif(not images.HAS_ROOM_FOR_GPU, reason="the image's build wants 35 GB of disk")


def test_it_runs_as_nobody_in_particular(lab: OneNodeCluster) -> None:
    assert lab.describe(images.GPU).user == "10001:10001"


def test_its_command_starts_on_a_read_only_root(lab: OneNodeCluster) -> None:
    assert lab.try_out(images.GPU, "python", "-m", "modelserver", "--help").startswith("usage: python -m modelserver ")


def test_vllm_is_imported_as_locked(lab: OneNodeCluster) -> None:
    version = lab.try_out(images.GPU, "python", "-c", "import vllm; print(vllm.__version__)").split()[-1]
    assert ("vllm", version) in images.locked("modelserver-gpu.txt")


def test_the_bill_of_materials_names_every_locked_package(lab: OneNodeCluster) -> None:
    listed = lab.bill_of_materials(images.GPU)
    assert images.locked("modelserver-gpu.txt") - images.packages(listed, "pypi") == set()
