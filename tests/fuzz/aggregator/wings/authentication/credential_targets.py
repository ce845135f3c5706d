"""Fuzz what callers show of themselves: tokens with a good signature, whatever they say, and the files behind them."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.algorithms import OKPAlgorithm
from jwt.utils import base64url_encode

from aggregator.wings.authentication.credentials import Credentials, JwtTokens, StaticTokens
from aggregator.wings.authentication.settings import JwtSettings
from tests.fuzz.target import Cut, Target

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))  # noqa: S108 - memory
_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
_JWK: dict[str, Any] = {**json.loads(OKPAlgorithm.to_jwk(_KEY.public_key())), "kid": "k"}
_SETTINGS = JwtSettings(tenant_claim="tenant")
_HEADER = {"alg": "EdDSA", "kid": "k"}
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


def known_callers() -> Credentials:
    """The authentication of a port with one token, and of client certificates."""
    tokens = Path(tempfile.mkdtemp(prefix="fuzz-")) / "tokens"
    tokens.write_text("tenant secret\n")
    return Credentials([StaticTokens(tokens)], client_certificates=True, wall_clock=lambda: 1.7e9)


TARGETS = (
    Target("signed_token", check_token),
    Target("jwks_file", check_keys),
    Target("tokens_file", check_list),
)
