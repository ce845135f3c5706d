"""Settings of authentication, a part of the group of the gRPC port."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from typing_extensions import override

from aggregator.settings.aggregator import GrpcSettings
from k8s.pod.settings import Group

OTHER_NAMES = {"api_key": "grpc.authentication.tokens_file"}
"""What the settings of vLLM are called here, by the last part of their names."""


class JwtSettings(Group):
    """JSON Web Tokens as bearer tokens."""

    jwks_file: Path | None = None
    issuer: str = ""
    audience: str = ""
    tenant_claim: str = "sub"


class AuthenticationSettings(Group):
    """Callers and their tenants; with any of these set, a call without a credential is refused."""

    tokens_file: Path | None = Field(
        default=None,
        description="bearer tokens, one a line: TENANT TOKEN, or TENANT sha256:DIGEST (hexadecimal) of the token",
    )
    jwt: JwtSettings = Field(
        default=JwtSettings(),
        description="bearer tokens that are JWTs. jwks_file: JSON Web Key Set with the keys that sign them; issuer and"
        " audience: the iss and aud that they must have (empty: any); tenant_claim: the claim that names the tenant",
    )
    client_certificates: bool = Field(
        default=False,
        description="the tenant is the client certificate's SPIFFE id, or else its common name, or else its first DNS"
        " name; a certificate without any is refused",
    )

    @property
    def required(self) -> bool:
        return self.tokens_file is not None or self.jwt.jwks_file is not None or self.client_certificates


class AuthenticatedGrpcSettings(GrpcSettings):
    """The gRPC port."""

    authentication: AuthenticationSettings = AuthenticationSettings()

    @property
    @override
    def authenticated(self) -> bool:
        return self.authentication.required
