"""What all unit tests share."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unit", deadline=None)  # how long an example takes depends on what else the machine does
settings.load_profile("unit")

_HERE = Path(__file__).parent
_OF_THE_CORE = (_HERE / "core", _HERE / "aggregator" / "test_pipeline.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Trace only the tests that are to cover the core.

    Tracing slows hundreds of seeds to a crawl and finds no branch in them that others do not take.
    """
    for item in items:
        if item.get_closest_marker("slow") or not any(item.path.is_relative_to(path) for path in _OF_THE_CORE):
            item.add_marker("no_cover")
