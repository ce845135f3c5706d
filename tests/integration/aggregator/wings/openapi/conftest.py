"""A front door for tests on the module's loop."""

from tests.integration.frontdoor.conftest import open_door

__all__ = ["open_door"]
