"""The command `python -m aggregator scaler`."""

from __future__ import annotations

import pytest

from tests.support.commands import ended


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--check",)])
def test_a_wrong_address_is_said_in_a_line(arguments: tuple[str, ...]) -> None:
    wrong = {"TOKENBATCH_SCALER_KAFKA__BOOTSTRAP_SERVERS": "localhost:"}
    code, said = ended("aggregator", "scaler", *arguments, **wrong)
    assert code == 2
    assert said.count("\n") == 1
    assert "'localhost:' is not host:port" in said
