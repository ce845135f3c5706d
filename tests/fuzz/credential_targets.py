"""Fuzz what callers show of themselves: tokens with a good signature, whatever they say, and the files behind them."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm
from jwt.utils import base64url_encode

from aggregator.settings.aggregator import JwtSettings
from aggregator.sources.calls import callers
from aggregator.sources.calls.callers import JwtTokens, StaticTokens
from tests.fuzz.target import Cut, Target, field

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))  # noqa: S108 - memory
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_JWK: dict[str, Any] = {**json.loads(OKPAlgorithm.to_jwk(_KEY.public_key())), "kid": "k"}
_SETTINGS = JwtSettings(tenant_claim="tenant")
_HEADER = {"alg": "EdDSA", "kid": "k"}
_CLAIMS = {"tenant": "t", "sub": "s", "iss": "i", "aud": ["a"], "exp": 4_000_000_000, "nbf": 1, "iat": 1}
_GOOD = f"{base64url_encode(json.dumps(_HEADER).encode()).decode()}.{base64url_encode(b'{}').decode()}.AA"


def _known() -> JwtTokens:
    file = _FOLDER / "known.json"
    file.write_text(json.dumps({"keys": [_JWK]}))
    return JwtTokens(file, _SETTINGS)


_KNOWN = _known()


def check_token(data: bytes) -> None:
    """A token's header and claims, which are signed."""
    cut = Cut(data)
    message = base64url_encode(cut.field()) + b"." + base64url_encode(cut.rest())
    token = (message + b"." + base64url_encode(_KEY.sign(message))).decode()
    caller = _KNOWN.caller(token)
    if caller is not None:
        assert caller.tenant.strip() == caller.tenant != "", "A caller has no name."
        assert math.isfinite(caller.expires_s), "A token is good for ever."
        caller.tenant.encode()


def check_keys(data: bytes) -> None:
    """A file of keys; if there are any, a token that names one is looked at."""
    file = _FOLDER / "keys.json"
    file.write_bytes(data)
    try:
        keys = JwtTokens(file, _SETTINGS)
    except ValueError:
        return
    keys.caller(_GOOD)


def check_list(data: bytes) -> None:
    """A file of tokens."""
    file = _FOLDER / "tokens"
    file.write_bytes(data)
    try:
        tokens = StaticTokens(file)
    except ValueError:
        return
    caller = tokens.caller("secret")
    assert caller is None or caller.tenant.strip(), "A caller has no name."


def _token_seeds() -> Sequence[bytes]:
    odd: tuple[Any, ...] = (
        True,
        None,
        [1],
        {},
        math.inf,
        math.nan,
        10**400,
        "soon",
        "9999999999",
        " ",
        "\ud800",
        "a\0",
    )
    claims = [json.dumps({**_CLAIMS, name: value}).encode() for name in _CLAIMS for value in odd]
    kinds: tuple[Any, ...] = (True, None, [], ["b64"], {}, 5, "none")
    headers = [json.dumps({**_HEADER, name: kind}).encode() for name in ("alg", "kid", "crit", "b64") for kind in kinds]
    header, body = json.dumps(_HEADER).encode(), json.dumps(_CLAIMS).encode()
    bodies = [body, *claims, b"[" * 3000, b"[1]", b'{"tenant": "\xff"}', b'{"exp": ' + b"9" * 3000 + b"}", b""]
    return [*(field(header) + each for each in bodies), *(field(each) + body for each in headers), b""]


def _keys_seeds() -> Sequence[bytes]:
    changes: tuple[dict[str, Any], ...] = (
        *({}, {"kid": 5}, {"kid": ["k"]}, {"kty": 5}, {"kty": ["OKP"]}, {"alg": "none"}, {"alg": ["EdDSA"]}, {"x": 5}),
        *({"crv": "X25519", "alg": "EdDSA"}, {"d": 5}, {"d": "AQ"}, {"use": "enc"}, {"kty": "oct", "k": "AQ"}),
        *({"kty": "RSA", "n": "AQ", "e": 5}, {"kty": "EC", "crv": ["P-256"], "y": None}),
    )
    documents: list[Any] = [{"keys": [{**_JWK, **changed}]} for changed in changes]
    documents += [[], 5, {"keys": 5}, {"keys": [5, None, {}]}, {}]
    return [*(json.dumps(each).encode() for each in documents), b"[" * 3000, b"\xff", b"\xef\xbb\xbf{}"]


def _list_seeds() -> Sequence[bytes]:
    return [b"# a\n\nt secret\n", b"t sha256:" + b"0" * 64, b"t sha256:x", b"t", b"t u v", b"\xff", b"\xc2\xad secret"]


_SOURCES = (Path(callers.__file__), Path(jwt.api_jwt.__file__))

TARGETS = (
    Target("signed_token", check_token, _token_seeds, _SOURCES),
    Target("jwks_file", check_keys, _keys_seeds, _SOURCES),
    Target("tokens_file", check_list, _list_seeds, _SOURCES[:1]),
)
