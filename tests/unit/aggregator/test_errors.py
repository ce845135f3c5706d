"""What a task group put together is taken apart again, on every Python 3.11."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

from aggregator.errors import ungrouped, unless_cancelled

ROOT = Path(__file__).parents[3]


async def failing(*errors: Exception) -> None:
    """Tasks that fail at the same time, in a group inside a group."""

    async def fail(error: Exception) -> None:
        raise error

    async with asyncio.TaskGroup(), asyncio.TaskGroup() as tasks:
        for error in errors:
            tasks.create_task(fail(error))


async def test_the_first_error_of_the_named_kinds_comes_by_itself() -> None:
    with pytest.raises((KeyError, OSError), match="first"), ungrouped(KeyError, OSError):
        await failing(KeyError("first"), OSError("second"))


async def test_errors_of_other_kinds_are_not_lost_behind_it() -> None:
    with pytest.raises(ExceptionGroup) as caught, ungrouped(KeyError):
        await failing(KeyError("first"), ValueError("a bug"))
    assert caught.group_contains(ValueError, match="a bug")


async def cancelled_by_a_library() -> None:
    raise asyncio.CancelledError


async def test_work_that_a_library_cancels_raises() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(unless_cancelled(cancelled_by_a_library()))
    assert caught.group_contains(RuntimeError, match="a library cancelled this work")


async def test_work_that_is_cancelled_ends() -> None:
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(unless_cancelled(asyncio.sleep(60)))
        await asyncio.sleep(0)
        working.cancel()
    assert working.cancelled()


def test_nowhere_is_an_error_raised_inside_except_star() -> None:
    """Python 3.11.0 to 3.11.3 put it into a group again."""
    found: list[str] = []
    parts = ("aggregator", "modelserver", "k8s", "helm", "loadtest", "tests")
    for file in sorted(file for part in parts for file in (ROOT / part).rglob("*.py")):
        text = file.read_text()
        for block in ast.walk(ast.parse(text)) if "except*" in text else ():
            if isinstance(block, ast.TryStar):
                raised = [node for handler in block.handlers for node in ast.walk(handler)]
                found += [f"{file}:{each.lineno}" for each in raised if isinstance(each, ast.Raise) and each.exc]
    assert not found
