"""Who a caller is, where that needs no call."""

from __future__ import annotations

import pytest

from aggregator.errors import Unauthenticated
from aggregator.sources.grpc.callers import Authentication


def test_a_certificate_names_its_tenant() -> None:
    authentication = Authentication([], client_certificates=True)
    assert authentication.by_certificate({"x509_common_name": [b"t\xc3\xa9am"]}).tenant == "t\u00e9am"


def test_a_certificate_whose_name_is_no_text_is_refused() -> None:
    authentication = Authentication([], client_certificates=True)
    with pytest.raises(Unauthenticated, match="is not UTF-8"):
        authentication.by_certificate({"x509_common_name": [b"t\xffeam"]})
