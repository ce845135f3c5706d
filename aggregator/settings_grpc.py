"""Configuration of the gRPC front door: the listener, its limits, its certificates, its callers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, field_validator

from aggregator.errors import StartError
from aggregator.replicas.addresses import changes, read


class Group(BaseModel):
    """One group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def check_address(address: str) -> None:
    """Raises ValueError for an address that begins like one whose endpoints change, and cannot be read."""
    if changes(address):
        try:
            read(address)
        except StartError as error:
            raise ValueError(str(error)) from error


class TlsSettings(Group):
    """Certificates of the gRPC port; files that change are read anew, without a restart."""

    cert_file: Path | None = Field(default=None, description="certificate chain, PEM; empty: no TLS")
    key_file: Path | None = Field(default=None, description="its private key, PEM, not encrypted")
    client_ca_file: Path | None = Field(
        default=None, description="CA of client certificates, PEM; given, every client must have one (mTLS)"
    )


class AuthenticationSettings(Group):
    """Who may call, and as which tenant; with any of these set, a call without a credential is refused."""

    tokens_file: Path | None = Field(
        default=None,
        description="bearer tokens, one a line: TENANT TOKEN, or TENANT sha256:DIGEST (hexadecimal) of the token",
    )
    jwks_file: Path | None = Field(default=None, description="JSON Web Key Set whose keys sign bearer tokens (JWT)")
    jwt_issuer: str = Field(default="", description="the iss that a JWT must have; empty: any")
    jwt_audience: str = Field(default="", description="the aud that a JWT must have; empty: any")
    jwt_tenant_claim: str = Field(default="sub", description="the claim of a JWT that names the tenant")
    jwt_algorithms: tuple[
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"], ...
    ] = Field(default=("RS256", "ES256", "EdDSA"), description="signatures that are accepted", min_length=1)
    client_certificates: bool = Field(
        default=False,
        description="the tenant is the client certificate's SPIFFE id, or else its common name, or else its first DNS"
        " name; a certificate without any is refused",
    )

    @property
    def required(self) -> bool:
        """Whether callers must show who they are; then no field of a message names a tenant, on Kafka neither."""
        return self.tokens_file is not None or self.jwks_file is not None or self.client_certificates


class GrpcSettings(Group):
    """The gRPC front door."""

    enabled: bool = Field(default=True, description="serve gRPC at all")
    bind: str = Field(default="0.0.0.0:50051", description="host:port; port 0 picks a free one")
    model: str = Field(default="", description="model of requests that name none; empty: the first one configured")
    priority: Literal["interactive", "default", "background"] = Field(
        default="interactive", description="class of requests that name none"
    )
    max_inputs: PositiveInt = Field(default=1024, description="inputs of one request")
    max_message_bytes: PositiveInt = Field(default=4 * 1024 * 1024, description="of one request")
    max_reply_bytes: PositiveInt = Field(
        default=16 * 1024 * 1024, description="a request whose vectors would need more is refused"
    )
    max_calls: PositiveInt = Field(
        default=4096, description="requests under way, those on streams included; more get RESOURCE_EXHAUSTED"
    )
    max_pending_bytes: PositiveInt = Field(
        default=64 * 1024 * 1024, description="bytes of the requests under way; more get RESOURCE_EXHAUSTED"
    )
    max_streams: PositiveInt = Field(
        default=48,
        description="open EmbedStream calls, each with room for one message on its way in; when one more comes,"
        " one that has been silent for 5 s makes way",
    )
    stream_window: PositiveInt = Field(default=256, description="requests under way on one EmbedStream")
    max_calls_per_connection: PositiveInt = Field(default=1024, description="HTTP/2 streams of one connection")
    max_metadata_bytes: PositiveInt = Field(default=16 * 1024, description="metadata of one call")
    max_connection_age_s: PositiveFloat = Field(
        default=1800.0, description="a connection is closed at this age (give or take 10 %), so that load spreads anew"
    )
    max_connection_grace_s: PositiveFloat = Field(
        default=300.0,
        description="and its calls are given so long to end; a stream ends by itself after nine tenths of it",
    )
    reflection: bool | None = Field(
        default=None,
        description="describe the service to tools such as grpcurl, which need no credential for it; empty: unless"
        " `grpc.authentication` is on",
    )
    tls: TlsSettings = TlsSettings()
    authentication: AuthenticationSettings = AuthenticationSettings()

    @property
    def describes_itself(self) -> bool:
        """Whether reflection is served."""
        return not self.authentication.required if self.reflection is None else self.reflection


class TenantSettings(Group):
    """What tenants may use, over all sources."""

    tokens_per_s: PositiveFloat | None = Field(
        default=None, description="of each tenant, at all aggregators together; empty: no limit"
    )
    rates: dict[str, PositiveFloat] = Field(default={}, description="tokens per second of single tenants")
    burst_s: PositiveFloat = Field(default=2.0, description="seconds' worth of its rate that a tenant may take at once")
    aggregators: str = Field(
        default="1",
        coerce_numbers_to_str=True,
        description="how many ready aggregators divide a tenant's rate: a number, or k8s://SERVICE.NAMESPACE:PORT or"
        " dns://NAME:PORT whose endpoints are counted",
    )

    @field_validator("aggregators")
    @classmethod
    def _can_be_counted(cls, aggregators: str) -> str:
        check_address(aggregators)
        if not changes(aggregators) and not (aggregators.isdecimal() and int(aggregators)):
            raise ValueError("give a number of 1 or more, k8s://SERVICE.NAMESPACE:PORT or dns://NAME:PORT")
        return aggregators

    @property
    def limited(self) -> bool:
        """Whether any tenant has a rate."""
        return self.tokens_per_s is not None or bool(self.rates)
