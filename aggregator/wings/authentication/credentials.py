"""Authenticate callers by bearer token or client certificate, and name their tenant."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeGuard

import jwt
from jwt.utils import base64url_decode
from pydantic import BaseModel, ConfigDict, FiniteFloat
from typing_extensions import override

from aggregator.errors import Unauthenticated
from aggregator.request.request import MAX_TENANT_CHARACTERS
from aggregator.settings.aggregator import GrpcSettings
from aggregator.sources.calls.callers import Authentication, Caller, CertificateNames
from aggregator.sources.calls.certificates import WatchedFiles
from aggregator.wings.authentication.settings import AuthenticatedGrpcSettings, JwtSettings
from k8s.pod.errors import StartError

_LOG = logging.getLogger(__name__)
_DIGEST_BYTES = hashlib.sha256().digest_size
_DIGEST_PREFIX = "sha256:"
_LEEWAY_S = 30.0  # clocks of identity providers may differ by this
_ALGORITHMS = ("RS256", "ES256", "EdDSA")
"""Signatures with a public key that identity providers give; none that a shared secret makes."""
_MOST_CHARACTERS = 8192
"""Of a token: gateways and servers take no longer header; and verifying one takes 50 ns a character."""
_MOST_OF_HEADER = 1024
"""Characters of a JWT's header, which is read before its signature is verified."""
_MAX_REMEMBERED = 4096  # checked tokens; above it all are checked again


def is_name(tenant: object) -> TypeGuard[str]:
    """Whether this can name a tenant: a printable text without blanks at its ends, and not too long."""
    return (
        isinstance(tenant, str)
        and 0 < len(tenant) <= MAX_TENANT_CHARACTERS
        and tenant.isprintable()
        and tenant.strip() == tenant
    )


class StaticTokens:
    """Tokens listed in a file, which holds them or their SHA-256."""

    def __init__(self, file: Path) -> None:
        """Raises OSError or ValueError."""
        self.files = WatchedFiles([file], partial(_read_tokens, file))

    def caller(self, token: str) -> Caller | None:
        """Tokens are found by the first half of their digest and compared in full, in constant time."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self.files.get().get(digest[: _DIGEST_BYTES // 2])
        if known is None or not hmac.compare_digest(known[0], digest):
            return None
        return Caller(known[1])


class JwtTokens:
    """JSON Web Tokens signed by a key of a JWKS file; the key is chosen by the token's `kid`."""

    def __init__(self, file: Path, settings: JwtSettings) -> None:
        """Raises OSError or ValueError."""
        self.files = WatchedFiles([file], partial(_read_keys, file))
        self._settings = settings

    def caller(self, token: str) -> Caller | None:
        """Checks signature, claims' types, times, issuer and audience; one without expiry or tenant is not valid."""
        settings = self._settings
        try:
            key = self._key(_kid(token))
            claims: dict[str, object] = jwt.decode(
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
        """Raises KeyError; a token that names no key may use the only one in the file."""
        keys = self.files.get()
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys[kid]


def _kid(token: str) -> str | None:
    """The key that a token names; nothing behind its header is decoded. Raises ValueError."""
    header, _, _ = token.partition(".")
    if len(header) > _MOST_OF_HEADER:
        raise ValueError("its header is too long")
    decoded = json.loads(base64url_decode(header))
    kid = decoded.get("kid") if isinstance(decoded, dict) else None
    if kid is not None and not isinstance(kid, str):
        raise ValueError("its kid is no text")
    return kid


class _Claims(BaseModel):
    """The registered claims as RFC 7519 types them: PyJWT takes some that are not, an `exp` in quotes among them."""

    model_config = ConfigDict(strict=True)

    exp: FiniteFloat
    nbf: FiniteFloat = 0.0
    iat: FiniteFloat = 0.0
    iss: str = ""
    sub: str = ""
    aud: str | list[str] = ""


class Credentials(Authentication):
    """All ways of authentication. A valid token is remembered until it expires or its file changes."""

    def __init__(
        self,
        tokens: Sequence[StaticTokens | JwtTokens],
        *,
        client_certificates: bool = False,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tuple(tokens)
        self._wall_clock = wall_clock
        self._remembered: dict[str, Caller] = {}
        self._versions: tuple[int, ...] = ()
        self._client_certificates = client_certificates

    @override
    def identify(self, authorization: str, certificate: Callable[[], CertificateNames]) -> Caller:
        if authorization:
            return self.by_token(authorization)
        if not self._client_certificates:
            raise Unauthenticated("the call has no bearer token: send it as authorization (over gRPC as metadata)")
        return self.by_certificate(certificate())

    def by_token(self, header: str) -> Caller:
        """The caller of an `authorization` header's value. Raises Unauthenticated."""
        versions = tuple(each.files.version for each in self._tokens)
        if versions != self._versions or len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
            self._versions = versions
        caller = self._remembered.get(header)
        if caller is None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer" or not token:
                raise Unauthenticated("authorization is no bearer token: expected the word Bearer, then the token")
            if len(token) > _MOST_CHARACTERS:
                raise Unauthenticated(f"the bearer token has {len(token)} characters: send at most {_MOST_CHARACTERS}")
            caller = replace(self._find(token.strip()), authorization=header)
            self._remembered[header] = caller
        if caller.expires_s <= self._wall_clock():
            raise Unauthenticated("the token has expired")
        return caller

    @override
    def check(self, caller: Caller) -> None:
        if caller.authorization and self.by_token(caller.authorization).tenant != caller.tenant:
            raise Unauthenticated("the bearer token is another tenant's now")

    def by_certificate(self, names: CertificateNames) -> Caller:
        """Raises Unauthenticated."""
        for value in (*names.spiffe_ids, *names.common_names, *names.dns_names):
            if value:
                return Caller(_name(value))
        raise Unauthenticated(
            "the call has no bearer token, and no client certificate with a SPIFFE id, a common name or a DNS name"
        )

    def _find(self, token: str) -> Caller:
        for each in self._tokens:
            caller = each.caller(token)
            if caller is not None:
                return caller
        raise Unauthenticated("the bearer token is not known, not valid or expired")


def open_authentication(grpc: GrpcSettings) -> Authentication | None:
    """The authentication that the settings ask for; None: anybody may call. Raises StartError for an unusable file."""
    if not isinstance(grpc, AuthenticatedGrpcSettings):
        return None
    settings = grpc.authentication
    tokens: list[StaticTokens | JwtTokens] = []
    for name, file, opened in (
        ("tokens_file", settings.tokens_file, StaticTokens),
        ("jwt.jwks_file", settings.jwt.jwks_file, partial(JwtTokens, settings=settings.jwt)),
    ):
        if file is not None:
            try:
                tokens.append(opened(file))
            except (OSError, ValueError) as error:
                raise StartError(f"grpc.authentication.{name} {file} cannot be used: {error}") from None
    if not tokens and not settings.client_certificates:
        return None
    return Credentials(tokens, client_certificates=settings.client_certificates)


def _name(value: bytes) -> str:
    """Raises Unauthenticated."""
    try:
        name = value.decode()
    except UnicodeDecodeError:
        raise Unauthenticated("the client certificate's name is not UTF-8") from None
    if not is_name(name):
        raise Unauthenticated(
            "the client certificate's name is blank, has characters that are not printable, or more than"
            f" {MAX_TENANT_CHARACTERS} of them"
        )
    return name


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
            raise ValueError(
                f"line {number}: the tenant's name is not printable, or longer than {MAX_TENANT_CHARACTERS}"
            )
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
    """The keys by their `kid`, without those that cannot verify. Raises ValueError."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        listed = document["keys"]
    except (LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"it is not a JSON Web Key Set: {type(error).__name__}") from None
    keys: dict[str | None, jwt.PyJWK] = {}
    for number, each in enumerate(listed if isinstance(listed, list) else (), start=1):
        try:
            key = _read_key(each)
        except (jwt.PyJWTError, AttributeError, NotImplementedError, TypeError, ValueError) as error:
            extra = {"file": str(file), "key": number, "error": type(error).__name__}
            _LOG.warning("a key of the JSON Web Key Set cannot be used", extra=extra)
            continue
        if key.key_id in keys:
            raise ValueError(f"key {number} has the id of another, or both have none: give each a different kid")
        keys[key.key_id] = key
    if not keys:
        raise ValueError("it holds no key that can be used")
    return keys


def _read_key(listed: dict[str, object]) -> jwt.PyJWK:
    """The public part of a key for signatures. Raises what PyJWK raises, or ValueError."""
    if not isinstance(listed.get("kid", ""), str) or listed.get("use", "sig") != "sig":
        raise ValueError("its id is not a text, or it is not for signatures")
    return jwt.PyJWK({name: value for name, value in listed.items() if name != "d"})
