"""In the run that finds out which test reaches what: no test finds in a cache what another put there.

And tell which test fails without any mutant: mutmut shows nothing of what pytest writes.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable

import pytest

_CACHE = type(functools.lru_cache(int))
_caches: list[Callable[[], None]] = []


def pytest_collection_finish() -> None:
    """Find the caches of all that was imported."""
    _caches.extend(found.cache_clear for found in gc.get_objects() if isinstance(found, _CACHE))


def pytest_runtest_setup() -> None:
    """Empty them before each test."""
    for clear in _caches:
        clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what is wrong with a test to where a person sees it."""
    if report.failed:
        print(f"\n{report.nodeid} failed without any mutant:\n{report.longreprtext[-3000:]}", file=sys.__stderr__)
