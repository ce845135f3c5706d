"""Whom a process trusts over TLS, alike under every Python."""

from __future__ import annotations

import ssl
from pathlib import Path

NOT_DEMANDED = ssl.VERIFY_X509_STRICT
"""Python 3.13 refuses by default authorities without the extensions of RFC 5280. Those of clusters, brokers and Redis
are their operators' own, live for ten years, and often lack them."""


def trusting(ca_file: Path | str | None) -> ssl.SSLContext:
    """A client's context that trusts the authorities in a file, or the system's. Raises OSError."""
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~NOT_DEMANDED
    return context
