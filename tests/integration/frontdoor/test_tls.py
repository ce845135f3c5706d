"""TLS and mTLS, and certificates that are rotated under a running server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from aggregator.settings.aggregator import TlsSettings
from aggregator.sources.grpc.listener import server_credentials
from k8s.process.errors import StartError
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.support.certificates import Authority, Pair
from tests.support.listening import Listening, ask, listening


def tls(folder: Path, client_ca: bytes | None = None) -> dict[str, Any]:
    chosen: dict[str, Any] = {"cert_file": folder / "server.crt", "key_file": folder / "server.key"}
    if client_ca:
        (folder / "client-ca.crt").write_bytes(client_ca)
        chosen["client_ca_file"] = folder / "client-ca.crt"
    return chosen


def trusting(authority: Authority, client: Pair | None = None) -> grpc.ChannelCredentials:
    key, cert = (client.key, client.cert) if client else (None, None)
    return grpc.ssl_channel_credentials(authority.cert, key, cert)


async def calls(door: Listening, credentials: grpc.ChannelCredentials) -> bool:
    async with grpc.aio.secure_channel(door.address, credentials) as channel:
        try:
            await pb_grpc.EmbeddingsStub(channel).Embed(ask("rain"), timeout=20)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - either is an outcome here
            return False
        return True


def served_name(address: str, ca: bytes) -> str:
    """The common name of the certificate that the server shows."""
    context = ssl.create_default_context(cadata=ca.decode())
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 20) as raw,
        context.wrap_socket(raw, server_hostname=host) as found,
    ):
        shown = found.getpeercert(binary_form=True)
    assert shown
    [name] = x509.load_der_x509_certificate(shown).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)


async def test_a_client_that_trusts_the_authority_gets_in(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    async with listening(settings={"grpc": {"tls": tls(tmp_path)}}, credentials=trusting(authority)) as door:
        await door.stub.Embed(ask("rain"))
        assert not await calls(door, trusting(Authority("another")))
        async with grpc.aio.insecure_channel(door.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await pb_grpc.EmbeddingsStub(channel).Embed(ask("rain"), timeout=20)


async def test_with_mtls_only_clients_of_the_authority_get_in(tmp_path: Path) -> None:
    authority, other = Authority(), Authority("another")
    authority.issue("server").write(tmp_path, "server")
    async with listening(settings={"grpc": {"tls": tls(tmp_path, authority.cert)}}) as door:
        assert await calls(door, trusting(authority, authority.issue("client")))
        assert not await calls(door, trusting(authority, other.issue("client")))
        assert not await calls(door, trusting(authority))


async def test_rotated_certificates_are_shown_without_a_restart_and_no_call_fails(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue("first").write(tmp_path, "server")
    async with listening(settings={"grpc": {"tls": tls(tmp_path)}}, credentials=trusting(authority)) as door:
        await door.stub.Embed(ask("rain"))
        assert await asyncio.to_thread(served_name, door.address, authority.cert) == "first"
        second = authority.issue("second")
        (tmp_path / "server.crt").write_bytes(second.cert)  # half of a rotation: the key is still the old one
        await asyncio.sleep(1.1)
        assert await asyncio.to_thread(served_name, door.address, authority.cert) == "first"
        (tmp_path / "server.key").write_bytes(second.key)
        await asyncio.sleep(1.1)
        assert await asyncio.to_thread(served_name, door.address, authority.cert) == "second"
        await door.stub.Embed(ask("rain"))
        assert await calls(door, trusting(authority))


async def test_a_rotated_client_authority_lets_the_new_clients_in_and_the_old_ones_no_more(tmp_path: Path) -> None:
    servers, old, new = Authority(), Authority("old"), Authority("new")
    servers.issue("server").write(tmp_path, "server")
    async with listening(settings={"grpc": {"tls": tls(tmp_path, old.cert)}}) as door:
        assert await calls(door, trusting(servers, old.issue("client")))
        (tmp_path / "client-ca.crt").write_bytes(new.cert)
        await asyncio.sleep(1.1)
        assert await calls(door, trusting(servers, new.issue("client")))
        assert not await calls(door, trusting(servers, old.issue("client")))


@pytest.mark.parametrize("broken", ["missing", "mismatch", "text", "half", "ca alone"])
def test_certificates_that_cannot_be_used_stop_the_start(tmp_path: Path, broken: str) -> None:
    authority = Authority()
    cert, key = authority.issue("server").write(tmp_path, "server")
    settings = TlsSettings(cert_file=cert, key_file=key)
    if broken == "missing":
        key.unlink()
    elif broken == "mismatch":
        key.write_bytes(authority.issue("other").key)
    elif broken == "text":
        cert.write_text("no certificate")
    elif broken == "half":
        settings = TlsSettings(cert_file=cert)
    else:
        settings = TlsSettings(client_ca_file=cert)
    with pytest.raises(StartError) as caught:
        server_credentials(settings)
    assert "PRIVATE" not in str(caught.value)


def test_without_files_there_is_no_tls() -> None:
    assert server_credentials(TlsSettings()) is None
