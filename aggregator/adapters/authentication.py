"""Say which tenant a caller is, by a bearer token or a client certificate; never by anything a caller can make up."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Protocol

import jwt

from aggregator.adapters.watched_files import WatchedFiles
from aggregator.errors import StartError, Unauthenticated
from aggregator.settings_grpc import AuthenticationSettings

_DIGEST_BYTES = hashlib.sha256().digest_size
_DIGEST_PREFIX = "sha256:"
_LEEWAY_S = 30.0
_MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, and until when its credential says so (Unix seconds)."""

    tenant: str
    expires_s: float = inf


class Tokens(Protocol):
    """One kind of bearer token."""

    @property
    def version(self) -> int:
        """Another number once what was valid before may be so no more."""
        ...

    def caller(self, token: str) -> Caller | None:
        """Whose token it is; None when it is not one of these, or not valid."""
        ...


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


class JwtTokens:
    """JSON Web Tokens signed by a key of a JWKS file; the key is chosen by the token's `kid`."""

    def __init__(self, file: Path, settings: AuthenticationSettings) -> None:
        """Raises OSError or ValueError."""
        self._keys = WatchedFiles([file], partial(_read_keys, file))
        self._settings = settings

    @property
    def version(self) -> int:
        """Another number once the file has changed."""
        self._keys.get()
        return self._keys.version

    def caller(self, token: str) -> Caller | None:
        """Checks signature, times, issuer and audience; a token without expiry or tenant is not valid."""
        settings = self._settings
        try:
            key = self._key(jwt.get_unverified_header(token).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=settings.jwt_algorithms,
                issuer=settings.jwt_issuer or None,
                audience=settings.jwt_audience or None,
                leeway=_LEEWAY_S,
                options={"require": ["exp"], "verify_aud": bool(settings.jwt_audience)},
            )
        except (jwt.PyJWTError, KeyError):
            return None
        tenant = claims.get(settings.jwt_tenant_claim)
        return Caller(tenant, claims["exp"] + _LEEWAY_S) if isinstance(tenant, str) and tenant else None

    def _key(self, kid: str | None) -> jwt.PyJWK:
        """Raises KeyError; a token that names no key may use the only one there is."""
        keys = self._keys.get()
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys[kid]


class Authentication:
    """Every way to show who calls; a token that was found valid is remembered until it, or its file, changes."""

    def __init__(
        self,
        tokens: Sequence[Tokens],
        *,
        client_certificates: bool = False,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tuple(tokens)
        self._wall_clock = wall_clock
        self._remembered: dict[str, Caller] = {}
        self._versions: tuple[int, ...] = ()
        self.client_certificates = client_certificates

    def by_token(self, header: str) -> Caller:
        """The caller of an `authorization` header's value. Raises Unauthenticated."""
        versions = tuple(each.version for each in self._tokens)
        if versions != self._versions or len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
            self._versions = versions
        caller = self._remembered.get(header)
        if caller is None:
            scheme, _, token = header.partition(" ")
            if scheme.lower() != "bearer" or not token:
                raise Unauthenticated("the authorization is no bearer token")
            caller = self._find(token.strip())
            self._remembered[header] = caller
        self.check(caller)
        return caller

    def check(self, caller: Caller) -> None:
        """Raises Unauthenticated when the caller's credential has expired by now."""
        if caller.expires_s <= self._wall_clock():
            raise Unauthenticated("the token has expired")

    def by_certificate(self, names: Mapping[str, Iterable[bytes]]) -> Caller:
        """The caller of a verified client certificate, by what gRPC says of it. Raises Unauthenticated."""
        for name in ("peer_spiffe_id", "x509_common_name"):
            for value in names.get(name, ()):
                try:
                    return Caller(value.decode())
                except UnicodeDecodeError:
                    raise Unauthenticated("the client certificate's name is not UTF-8") from None
        raise Unauthenticated("there is neither a bearer token nor a client certificate")

    def _find(self, token: str) -> Caller:
        for each in self._tokens:
            caller = each.caller(token)
            if caller is not None:
                return caller
        raise Unauthenticated("the bearer token is not known, not valid or expired")


def open_authentication(settings: AuthenticationSettings) -> Authentication | None:
    """What the settings ask for; None: anybody may call. Raises StartError for a file that cannot be used."""
    tokens: list[Tokens] = []
    for name, file, opened in (
        ("tokens_file", settings.tokens_file, StaticTokens),
        ("jwks_file", settings.jwks_file, partial(JwtTokens, settings=settings)),
    ):
        if file is not None:
            try:
                tokens.append(opened(file))
            except (OSError, ValueError) as error:
                raise StartError(f"grpc.authentication.{name} {file} cannot be used: {error}") from None
    if not tokens and not settings.client_certificates:
        return None
    return Authentication(tokens, client_certificates=settings.client_certificates)


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
    """The keys by their `kid`. Raises ValueError."""
    try:
        keys = jwt.PyJWKSet.from_json(file.read_text(encoding="utf-8")).keys
    except (jwt.PyJWTError, AttributeError, TypeError) as error:
        raise ValueError(f"it is no JSON Web Key Set: {type(error).__name__}") from None
    return {key.key_id: key for key in keys}
