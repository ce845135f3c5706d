"""One Kafka for most rows, a stack for each, and a file with the figures of every row that was run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loadtest.stack.kafka import KafkaBroker
from tests.faults.row_stack import RowStack, opened
from tests.faults.rows import Figures, Row, write_row

_FIGURES = pytest.StashKey[Figures]()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def kafka(broker: KafkaBroker) -> KafkaBroker:
    """The broker, which a row may stop: it runs again for the next one."""
    if broker.exit_code is not None:
        broker.start()
    return broker


@pytest_asyncio.fixture
async def stack(kafka: KafkaBroker, tmp_path: Path) -> AsyncIterator[RowStack]:
    async with opened(RowStack(tmp_path, kafka.bootstrap)) as stack:
        yield stack


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """What the row reports; written to its file whatever becomes of the test."""
    item: pytest.Item = request.node
    return item.stash.setdefault(_FIGURES, Figures())


@pytest.fixture
def timed(pytestconfig: pytest.Config) -> bool:
    """Whether bounds by the clock count: all but in the short run, beside which other tests compute."""
    return "short" not in pytestconfig.option.markexpr


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the row's file when its test has been called, or could not be."""
    report = yield
    mark = item.get_closest_marker("row")
    if mark is not None and (call.when == "call" or (call.when == "setup" and not report.passed)):
        known = getattr(report, "wasxfail", "")
        why: Any = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else known
        figures = item.stash.get(_FIGURES, Figures())
        verdict = figures.verdict
        row = Row(
            name=item.name,
            file=item.path.stem,
            fault=str(mark.args[0]),
            outcome="failed" if known else report.outcome,
            why=str(why),
            seconds=round(report.duration, 1),
            figures=figures.counts if verdict is None else verdict.figures(),
            more=figures.more,
            problems=() if verdict is None else verdict.problems,
        )
        write_row(row)
    return report
