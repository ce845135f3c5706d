"""Who a caller is, where that needs no call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aggregator.errors import Unauthenticated
from aggregator.settings.aggregator import JwtSettings
from aggregator.sources.calls.callers import Authentication, CertificateNames, JwtTokens, StaticTokens, is_name


def test_a_certificate_names_its_tenant() -> None:
    authentication = Authentication([], client_certificates=True)
    assert authentication.by_certificate(CertificateNames(common_names=[b"t\xc3\xa9am"])).tenant == "t\u00e9am"


def test_a_certificate_whose_name_is_no_text_is_refused() -> None:
    authentication = Authentication([], client_certificates=True)
    with pytest.raises(Unauthenticated, match="is not UTF-8"):
        authentication.by_certificate(CertificateNames(common_names=[b"t\xffeam"]))


def test_a_credential_s_tenant_has_a_bounded_name(tmp_path: Path) -> None:
    authentication = Authentication([], client_certificates=True)
    with pytest.raises(Unauthenticated, match="more than 256 of them"):
        authentication.by_certificate(CertificateNames(common_names=[b"t" * 257]))
    (tmp_path / "tokens").write_text(f"{'t' * 257} secret")
    with pytest.raises(ValueError, match="line 1: the tenant's name is not printable, or longer than 256"):
        StaticTokens(tmp_path / "tokens")
    assert is_name("t" * 256)
    assert not is_name("t" * 257)


@pytest.mark.parametrize("kid", [{}, {"kid": "same"}])
def test_keys_that_cannot_be_told_apart_are_refused_with_what_to_do(tmp_path: Path, kid: dict[str, str]) -> None:
    keys = [{"kty": "oct", "k": text, "alg": "HS256", **kid} for text in ("c2VjcmV0", "b3RoZXI")]
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    with pytest.raises(ValueError, match="key 2 has the id of another, or both have none: give each a different kid"):
        JwtTokens(file, JwtSettings())
