"""The chunks of documents are counted before anything is made of them."""

from __future__ import annotations

import json

import pytest

from aggregator.request.request import Defaults
from aggregator.scheduler.work_item import Priority
from aggregator.sources.http.errors import FieldError
from aggregator.wings.http_forms.voyage import read_documents
from tests.support.fake_source import GRPC

DEFAULTS = Defaults(GRPC, "m", Priority.INTERACTIVE)


def test_more_documents_in_chunks_than_are_taken_are_refused() -> None:
    with pytest.raises(FieldError, match="3000 documents: at most 2048 are taken"):
        read_documents(json.dumps({"inputs": [[]] * 3000}).encode(), DEFAULTS, "id")
