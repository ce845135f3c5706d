"""The option `python -m aggregator --check`."""

from __future__ import annotations

import pytest

from tests.support.commands import ended


@pytest.mark.slow
def test_a_wrong_address_is_said_in_a_line() -> None:
    code, said = ended("aggregator", "--check", TOKENBATCH_AGGREGATOR_KAFKA__BOOTSTRAP_SERVERS="localhost:")
    assert code == 2
    assert said.count("\n") == 1
    assert "'localhost:' is not host:port" in said
