"""Who a caller is, where that needs no call."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from aggregator.errors import Unauthenticated
from aggregator.sources.calls.callers import Caller, CertificateNames
from aggregator.wings.authentication.credentials import Credentials, JwtTokens, StaticTokens, is_name
from aggregator.wings.authentication.settings import JwtSettings


def test_a_certificate_names_its_tenant() -> None:
    authentication = Credentials([], client_certificates=True)
    assert authentication.by_certificate(CertificateNames(common_names=[b"t\xc3\xa9am"])).tenant == "t\u00e9am"


def test_a_certificate_whose_name_is_no_text_is_refused() -> None:
    authentication = Credentials([], client_certificates=True)
    with pytest.raises(Unauthenticated, match="is not UTF-8"):
        authentication.by_certificate(CertificateNames(common_names=[b"t\xffeam"]))


class _CountedTokens(StaticTokens):
    """A list that says how often it was asked."""

    asked = 0

    def caller(self, token: str) -> Caller | None:
        self.asked += 1
        return super().caller(token)


def test_a_token_is_measured_before_it_is_verified(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("team secret")
    tokens = _CountedTokens(tmp_path / "tokens")
    authentication = Credentials([tokens])
    with pytest.raises(Unauthenticated, match="has 8193 characters: send at most 8192"):
        authentication.by_token("Bearer " + "e" * 8193)
    assert tokens.asked == 0
    with pytest.raises(Unauthenticated, match="is not known"):
        authentication.by_token("Bearer " + "e" * 8192)
    assert tokens.asked == 1


@pytest.mark.parametrize("header", [b'{"kid": 5}', b'{"kid": "' + b"a" * 768 + b'"}', b"[]", b"\xff", b""])
def test_a_header_is_refused_before_the_rest_of_its_token_is_decoded(tmp_path: Path, header: bytes) -> None:
    key = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    (tmp_path / "keys").write_text(json.dumps({"keys": [{**key, "kid": "one"}, {**key, "kid": "two"}]}))
    tokens = JwtTokens(tmp_path / "keys", JwtSettings())
    assert tokens.caller(urlsafe_b64encode(header).decode().rstrip("=") + "." + "!" * 4000 + ".!") is None


def test_a_credential_s_tenant_has_a_bounded_name(tmp_path: Path) -> None:
    authentication = Credentials([], client_certificates=True)
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
