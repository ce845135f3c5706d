"""Say which tenant a caller is, by a bearer token or a client certificate; never by anything a caller can make up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from aggregator.errors import StartError, Unauthenticated
from aggregator.request import Defaults
from aggregator.settings.aggregator import AuthenticationSettings
from aggregator.sources.grpc.bearer_tokens import Caller, JwtTokens, StaticTokens, is_name
from aggregator.sources.grpc.load import Holders
from aggregator.sources.grpc.reading import Context

_MAX_REMEMBERED = 4096
_CERTIFICATE_NAMES = ("peer_spiffe_id", "x509_common_name", "peer_dns")
"""Of a client certificate, as gRPC calls them; the first that there is names the tenant."""


class Tokens(Protocol):
    """One kind of bearer token."""

    @property
    def version(self) -> int:
        """Another number once what was valid before may be so no more."""
        ...

    def caller(self, token: str) -> Caller | None:
        """Whose token it is; None when it is not one of these, or not valid."""
        ...


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
            caller = replace(self._find(token.strip()), authorization=header)
            self._remembered[header] = caller
        if caller.expires_s <= self._wall_clock():
            raise Unauthenticated("the token has expired")
        return caller

    def check(self, caller: Caller) -> None:
        """Raises Unauthenticated when the caller's token has expired since, was revoked, or is another tenant's."""
        if caller.authorization and self.by_token(caller.authorization).tenant != caller.tenant:
            raise Unauthenticated("the bearer token is another tenant's now")

    def by_certificate(self, names: Mapping[str, Iterable[bytes]]) -> Caller:
        """The caller of a verified client certificate, by what gRPC says of it. Raises Unauthenticated."""
        for kind in _CERTIFICATE_NAMES:
            for value in names.get(kind, ()):
                if value:
                    return Caller(_name(value))
        raise Unauthenticated(
            "there is no bearer token, and no client certificate with a SPIFFE id, a common name or a DNS name"
        )

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
        ("jwt.jwks_file", settings.jwt.jwks_file, partial(JwtTokens, settings=settings.jwt)),
    ):
        if file is not None:
            try:
                tokens.append(opened(file))
            except (OSError, ValueError) as error:
                raise StartError(f"grpc.authentication.{name} {file} cannot be used: {error}") from None
    if not tokens and not settings.client_certificates:
        return None
    return Authentication(tokens, client_certificates=settings.client_certificates)


def _name(value: bytes) -> str:
    """Raises Unauthenticated."""
    try:
        name = value.decode()
    except UnicodeDecodeError:
        raise Unauthenticated("the client certificate's name is not UTF-8") from None
    if not is_name(name):
        raise Unauthenticated("the client certificate's name is blank, or holds what cannot be seen")
    return name


_MAX_TENANTS = 4096
_LONGEST_KEPT = 256


@dataclass(frozen=True, slots=True)
class Identity:
    """What a call's requests are taken with; `caller` is None where anybody may call.

    `holders` answer for what the call holds, the last of them for its messages: the tenant that a credential names, or
    else the tenant that the caller does, if any, and its connection, which nobody can make up.
    """

    defaults: Defaults
    traceparent: bytes | None
    caller: Caller | None
    holders: Holders


def tenant_holder(tenant: str) -> str:
    """The tenant as one who answers for what a call holds; no connection is called so."""
    return f"tenant {tenant}"


class Callers:
    """Reads the metadata of calls. With authentication on, the tenant is the credential's, whatever a field says."""

    def __init__(self, defaults: Defaults, authentication: Authentication | None, *, traced: bool) -> None:
        self._defaults = defaults
        self._authentication = authentication
        self._traced = traced
        self._by_tenant: dict[str, Defaults] = {}

    def identify(self, context: Context) -> Identity:
        """Raises Unauthenticated."""
        tenant = traceparent = authorization = ""
        for name, value in context.invocation_metadata() or ():
            if name == "x-tenant":
                tenant = _text(value)
            elif name == "traceparent":
                traceparent = _text(value)
            elif name == "authorization":
                authorization = _text(value)
        caller = None
        if self._authentication is not None:
            caller = self._caller(self._authentication, authorization, context)
            tenant = caller.tenant
        trace = traceparent.encode() if traceparent and self._traced else None
        if caller is not None:
            holders: Holders = (tenant_holder(tenant),)
        else:
            holders = (tenant_holder(tenant), context.peer()) if tenant else (context.peer(),)
        return Identity(self._of_tenant(tenant) if tenant else self._defaults, trace, caller, holders)

    def check(self, identity: Identity) -> None:
        """Raises Unauthenticated once the credential has expired or was revoked; a stream may outlive it."""
        if self._authentication is not None and identity.caller is not None:
            self._authentication.check(identity.caller)

    def _caller(self, authentication: Authentication, authorization: str, context: Context) -> Caller:
        if authorization:
            return authentication.by_token(authorization)
        if not authentication.client_certificates:
            raise Unauthenticated("there is no bearer token: send it as authorization metadata")
        return authentication.by_certificate(context.auth_context())

    def _of_tenant(self, tenant: str) -> Defaults:
        defaults = self._by_tenant.get(tenant)
        if defaults is None:
            if len(self._by_tenant) >= _MAX_TENANTS:
                self._by_tenant.clear()
            defaults = replace(self._defaults, tenant=tenant, trusts_tenant=self._authentication is None)
            if len(tenant) <= _LONGEST_KEPT:
                self._by_tenant[tenant] = defaults
        return defaults


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
