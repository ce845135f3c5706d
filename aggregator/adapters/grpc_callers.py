"""Know who makes a call and what rides along in its metadata: the tenant, the trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

from aggregator.adapters.authentication import Authentication
from aggregator.adapters.bearer_tokens import Caller
from aggregator.adapters.grpc_load import Holders
from aggregator.adapters.grpc_refusals import Context
from aggregator.errors import Unauthenticated
from aggregator.request import Defaults

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
