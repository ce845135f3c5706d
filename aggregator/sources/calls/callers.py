"""Identify callers: their tenant, their class, and whose shares their calls count against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf

from aggregator.admission.bounds import Address
from aggregator.admission.ledger import Holders
from aggregator.errors import InvalidRequest
from aggregator.request.request import Defaults, checked_tenant
from aggregator.scheduler.work_item import Priority

_MAX_TENANTS = 4096  # callers may invent tenants
_TENANT, _FAIRNESS_ID, _OBJECTIVE = "x-tenant", "x-gateway-inference-fairness-id", "x-gateway-inference-objective"
"""Our header, and those of the Gateway API's inference extension."""
_OBJECTIVES = {priority.name.lower(): priority for priority in Priority}
"""An objective is the name of a resource that the gateway knows; one with another name asks for nothing here."""
_NAMES_CALLER = ("authorization", _TENANT, _FAIRNESS_ID)


def check_repeated(names: Collection[str]) -> None:
    """Raises InvalidRequest for two values of a header that names the caller: a proxy may have read the other one."""
    for name in _NAMES_CALLER:
        if name in names:
            raise InvalidRequest(f"{name} is sent twice, which might name two callers: send it once")


@dataclass(frozen=True, slots=True)
class Caller:
    """A tenant, the expiry of its credential (Unix seconds), and the `authorization` header that named it."""

    tenant: str
    expires_s: float = inf
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The names in a verified client certificate; the first that there is, in this order, names the tenant."""

    spiffe_ids: Iterable[bytes] = ()
    common_names: Iterable[bytes] = ()
    dns_names: Iterable[bytes] = ()


class Authentication(ABC):
    """Identifies callers. Without one anybody may call, and name a tenant; `wings/authentication` has one."""

    @abstractmethod
    def identify(self, authorization: str, certificate: Callable[[], CertificateNames]) -> Caller:
        """The caller by its `authorization` header, "" for none, or by its client certificate.

        Raises Unauthenticated.
        """

    @abstractmethod
    def check(self, caller: Caller) -> None:
        """Raises Unauthenticated when the token of a caller has expired, was revoked, or names another tenant now."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a caller; `caller` is None without authentication.

    `holders`: whose shares the call counts against, the last of them for its messages. With authentication the tenant;
    without it the tenant that the call names, if any, its address and its connection.
    """

    defaults: Defaults
    traceparent: bytes | None
    caller: Caller | None
    holders: Holders


def tenant_holder(tenant: str) -> str:
    """The tenant as a holder; no connection has such a name."""
    return f"tenant {tenant}"


@lru_cache(maxsize=4096)  # as many as there are connections
def _of_connection(connection: str) -> Holders:
    """A caller without a name: its address, and its connection there."""
    return Address(connection.rpartition(":")[0]), connection


class Callers:
    """Reads the metadata of calls. With authentication the tenant is the credential's, not the metadata's."""

    def __init__(self, defaults: Defaults, authentication: Authentication | None, *, traced: bool) -> None:
        self._defaults = defaults
        self._authentication = authentication
        self._traced = traced
        self._kept: dict[tuple[str, Priority], Defaults] = {}

    def identify(
        self, header: Callable[[str], str], peer: Callable[[], str], certificate: Callable[[], CertificateNames]
    ) -> Identity:
        """The identity of a caller; `header` gives the value of a header, or of gRPC's metadata, and "" for none.

        Raises Unauthenticated or InvalidRequest.
        """
        caller = None
        if self._authentication is not None:
            caller = self._authentication.identify(header("authorization"), certificate)
            tenant = caller.tenant
        else:
            field = _TENANT if header(_TENANT) else _FAIRNESS_ID
            tenant = checked_tenant(header(field), field)
        trace = header("traceparent").encode() if self._traced else b""
        priority = _OBJECTIVES.get(header(_OBJECTIVE), self._defaults.priority)
        holders: Holders
        if caller is not None:
            holders = (tenant_holder(tenant),)
        else:
            holders = _of_connection(peer())
            if tenant:
                holders = (tenant_holder(tenant), *holders)
        return Identity(self._defaults_of(tenant, priority), trace or None, caller, holders)

    def check(self, identity: Identity) -> None:
        """Raises Unauthenticated once the credential has expired or was revoked; a stream may outlive it."""
        if self._authentication is not None and identity.caller is not None:
            self._authentication.check(identity.caller)

    def _defaults_of(self, tenant: str, priority: Priority) -> Defaults:
        defaults = self._kept.get((tenant, priority))
        if defaults is None:
            if len(self._kept) >= _MAX_TENANTS:
                self._kept.clear()
            defaults = replace(
                self._defaults, tenant=tenant, priority=priority, trusts_tenant=self._authentication is None
            )
            self._kept[tenant, priority] = defaults
        return defaults
