"""The command `python -m aggregator redrive`."""

from __future__ import annotations

import pytest

from tests.support.commands import ended


@pytest.mark.slow
def test_the_address_of_its_option_is_checked() -> None:
    code, said = ended("aggregator", "redrive", "--from", "a-topic", "--bootstrap", "localhost:")
    assert (code, "Traceback" in said) == (2, False)
    assert "'localhost:' is not host:port" in said
