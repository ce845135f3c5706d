"""Schemas are read once: the library reads megabytes anew for each object."""

import functools

import kubernetes_validate.utils
import pytest

SCHEMAS = functools.cache(kubernetes_validate.utils.schema_contents)


@pytest.fixture(autouse=True)
def _schemas_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", SCHEMAS)
