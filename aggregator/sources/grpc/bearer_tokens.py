"""Find whose a bearer token is: by a list of tokens, or by the signature of one who issues them."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeGuard

import jwt
from pydantic import BaseModel, ConfigDict, FiniteFloat

from aggregator.settings.aggregator import JwtSettings
from aggregator.sources.grpc.certificates import WatchedFiles

_LOG = logging.getLogger(__name__)
_DIGEST_BYTES = hashlib.sha256().digest_size
_DIGEST_PREFIX = "sha256:"
_LEEWAY_S = 30.0


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, until when its credential says so (Unix seconds), and the `authorization` header that it came by."""

    tenant: str
    expires_s: float = inf
    authorization: str = field(default="", repr=False)


def is_name(tenant: object) -> TypeGuard[str]:
    """Whether this can name a tenant: a text in which nothing is blank at its ends, or cannot be seen."""
    return isinstance(tenant, str) and tenant != "" and tenant.isprintable() and tenant.strip() == tenant


class StaticTokens:
    """Tokens listed in a file, which holds them or their SHA-256."""

    def __init__(self, file: Path) -> None:
        """Raises OSError or ValueError."""
        self._tokens = WatchedFiles([file], partial(_read_tokens, file))

    @property
    def version(self) -> int:
        """Another number once the file has changed."""
        self._tokens.get()
        return self._tokens.version

    def caller(self, token: str) -> Caller | None:
        """Compares digests, in constant time; whose digest to compare with is looked up by its first half."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._tokens.get().get(digest[: _DIGEST_BYTES // 2])
        if known is None or not hmac.compare_digest(known[0], digest):
            return None
        return Caller(known[1])


_ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""Signatures with a public key that identity providers give; none that a shared secret makes."""


class JwtTokens:
    """JSON Web Tokens signed by a key of a JWKS file; the key is chosen by the token's `kid`."""

    def __init__(self, file: Path, settings: JwtSettings) -> None:
        """Raises OSError or ValueError."""
        self._keys = WatchedFiles([file], partial(_read_keys, file))
        self._settings = settings

    @property
    def version(self) -> int:
        """Another number once the file has changed."""
        self._keys.get()
        return self._keys.version

    def caller(self, token: str) -> Caller | None:
        """Checks signature, claims' types, times, issuer and audience; one without expiry or tenant is not valid."""
        settings = self._settings
        try:
            key = self._key(jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=_ALGORITHMS,
                issuer=settings.issuer or None,
                audience=settings.audience or None,
                leeway=_LEEWAY_S,
                options={"require": ["exp"], "verify_aud": bool(settings.audience)},
            )
            expires_s = _Claims.model_validate(claims).exp
        except (jwt.PyJWTError, KeyError, ValueError):
            return None
        tenant = claims.get(settings.tenant_claim)
        return Caller(tenant, expires_s + _LEEWAY_S) if is_name(tenant) else None

    def _key(self, kid: str | None) -> jwt.PyJWK:
        """Raises KeyError; a token that names no key may use the only one there is."""
        keys = self._keys.get()
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys[kid]


class _Claims(BaseModel):
    """The registered claims as RFC 7519 types them: PyJWT takes some that are not, an `exp` in quotes among them."""

    model_config = ConfigDict(strict=True)

    exp: FiniteFloat
    nbf: FiniteFloat = 0.0
    iat: FiniteFloat = 0.0
    iss: str = ""
    sub: str = ""
    aud: str | list[str] = ""


def _read_tokens(file: Path) -> dict[bytes, tuple[bytes, str]]:
    """Digest and tenant of each line, by the digest's first half. Raises ValueError, which quotes no token."""
    found: dict[bytes, tuple[bytes, str]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:  # noqa: PLR2004 - tenant and token
            raise ValueError(f"line {number} is not: TENANT TOKEN")
        tenant, token = words
        if not is_name(tenant):
            raise ValueError(f"line {number}: the tenant's name holds what cannot be seen")
        digest = hashlib.sha256(token.encode()).digest()
        if token.startswith(_DIGEST_PREFIX):
            try:
                digest = bytes.fromhex(token.removeprefix(_DIGEST_PREFIX))
            except ValueError:
                digest = b""
            if len(digest) != _DIGEST_BYTES:
                raise ValueError(f"line {number}: the digest is not 64 hexadecimal digits")
        found[digest[: _DIGEST_BYTES // 2]] = (digest, tenant)
    return found


def _read_keys(file: Path) -> dict[str | None, jwt.PyJWK]:
    """The keys by their `kid`; those that verify nothing are passed over. Raises ValueError."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        listed = document["keys"]
    except (LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"it is no JSON Web Key Set: {type(error).__name__}") from None
    keys: dict[str | None, jwt.PyJWK] = {}
    for number, each in enumerate(listed if isinstance(listed, list) else (), start=1):
        try:
            key = _read_key(each)
        except (jwt.PyJWTError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
            extra = {"file": str(file), "key": number, "error": type(error).__name__}
            _LOG.warning("a key of the JSON Web Key Set cannot be used", extra=extra)
            continue
        if key.key_id in keys:
            raise ValueError(f"key {number} has the id of another, or both have none: give each a kid of its own")
        keys[key.key_id] = key
    if not keys:
        raise ValueError("it holds no key that can be used")
    return keys


def _read_key(listed: dict[str, Any]) -> jwt.PyJWK:
    """The public half of a key that signs. Raises what PyJWK does, or ValueError."""
    if not isinstance(listed.get("kid", ""), str) or listed.get("use", "sig") != "sig":
        raise ValueError("its id is no text, or it is not for signatures")
    return jwt.PyJWK({name: value for name, value in listed.items() if name != "d"})
