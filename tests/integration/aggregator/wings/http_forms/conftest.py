"""The front door of the tests of HTTP."""

from tests.integration.frontdoor.conftest import open_door

__all__ = ["open_door"]
