"""Tell which test failed before there was any mutant: mutmut shows nothing of what pytest writes."""

import sys

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what is wrong with a test to where a person sees it."""
    if report.failed:
        print(f"\n{report.nodeid} failed without any mutant:\n{report.longreprtext[-3000:]}", file=sys.__stderr__)
