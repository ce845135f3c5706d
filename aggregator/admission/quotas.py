"""The hook for the rates of tenants."""

from __future__ import annotations


class Quotas:
    """The rates of tenants: by default they have none. The wing `quotas` has them."""

    def wait_s(self, tenant: str, token_count: int, now_s: float) -> float:
        """Seconds until a request of `token_count` tokens fits the tenant's rate; 0 when it fits now."""
        del tenant, token_count, now_s
        return 0.0

    def rested_s(self, tenant: str, now_s: float) -> float:
        """Seconds until the tenant's whole burst fits again."""
        del tenant, now_s
        return 0.0

    def charge(self, tenant: str, token_count: int, now_s: float) -> None:
        """Count the tokens of a request, whether or not they fit."""

    async def run(self) -> None:
        """Follow what the rates depend on, until cancelled or known for good."""
