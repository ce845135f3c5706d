"""What all unit tests share."""

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unit", deadline=None)  # how long an example takes depends on what else the machine does
settings.load_profile("unit")

_HERE = Path(__file__).parent
_OF_THE_CORE = (
    _HERE / "aggregator" / "admission",
    _HERE / "aggregator" / "scheduler",
    _HERE / "aggregator" / "sources" / "kafka",
    _HERE / "modelserver" / "profile" / "test_saturation.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Trace only the tests that are to cover the core.

    Tracing slows hundreds of seeds to a crawl and finds no branch in them that others do not take. (pytest-cov's own
    marker `no_cover` does nothing in the processes of pytest-xdist: they trace twice, and it stops one of the two.)
    """
    if any(item.path.is_relative_to(path) for path in _OF_THE_CORE) and not item.get_closest_marker("slow"):
        return (yield)
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
