"""What all unit tests share."""

import asyncio
import sys
from collections.abc import Callable, Generator, Mapping

import pytest

from tests.support import no_real_time
from tests.support.virtual_time import AutojumpLoop

no_real_time.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Trace no hundreds of seeds: it slows them to a crawl, and they take no branch that others do not."""
    if not item.get_closest_marker("slow"):
        return (yield)
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Async tests run in virtual time."""
    del config
    return {"loop": asyncio.SelectorEventLoop if item.get_closest_marker("real_time") else AutojumpLoop}


@pytest.fixture(autouse=True)
def _no_real_time(request: pytest.FixtureRequest) -> Generator[None]:
    """Clocks tell the virtual time; sleeping and sockets raise."""
    if request.node.get_closest_marker("real_time"):
        yield
        return
    with no_real_time.forbidden():
        yield
