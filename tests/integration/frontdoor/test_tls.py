"""TLS, mTLS, and certificates that are rotated under a running server: by gRPC and over HTTP alike."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import uvloop
from cryptography import x509
from cryptography.x509.oid import NameOID

from aggregator.settings.aggregator import TlsSettings
from aggregator.sources.grpc.listener import server_credentials
from k8s.pod.errors import StartError
from protos.embedding.v1 import embedding_pb2_grpc as pb_grpc
from tests.integration.frontdoor.test_http import OPEN
from tests.support.certificates import Authority
from tests.support.listening import Listening, ask, listening, taken_calls

Run = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
"""Transports differ; the aggregator runs on uvloop."""
EITHER = pytest.mark.parametrize("protocol", ["grpc", "http"])


def settings(folder: Path, client_ca: bytes | None = None, **further: Any) -> dict[str, Any]:
    tls: dict[str, Any] = {"cert_file": folder / "server.crt", "key_file": folder / "server.key"}
    if client_ca:
        (folder / "client-ca.crt").write_bytes(client_ca)
        tls["client_ca_file"] = folder / "client-ca.crt"
    return {"grpc": {"tls": tls, **further}, **OPEN}


@asynccontextmanager
async def connection(
    door: Listening, protocol: str, authority: Authority, client: tuple[Path, Path] | None = None
) -> AsyncGenerator[Callable[[], Awaitable[object]]]:
    """A call on one connection that trusts the authority, and shows a client's certificate and key."""
    if protocol == "grpc":
        cert, key = (each.read_bytes() for each in client) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(authority.cert, key, cert)
        async with grpc.aio.secure_channel(door.address, credentials) as channel:
            yield lambda: pb_grpc.EmbeddingsStub(channel).Embed(ask("rain"), timeout=20)
        return
    context = ssl.create_default_context(cadata=authority.cert.decode())
    if client:
        context.load_cert_chain(*client)
    async with aiohttp.ClientSession(
        f"https://{door.http}", connector=aiohttp.TCPConnector(ssl=context), raise_for_status=True
    ) as session:

        async def call() -> None:
            async with session.post("/v1/embeddings", json={"input": "rain"}) as response:
                await response.read()

        yield call


async def gets_in(
    door: Listening, protocol: str, authority: Authority, client: tuple[Path, Path] | None = None
) -> bool:
    async with connection(door, protocol, authority, client) as call:
        try:
            await call()
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - either is an outcome here
            return False
        except (aiohttp.ClientConnectionError, ssl.SSLError):
            return False
        return True


def served_name(address: str, ca: bytes) -> str:
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


@EITHER
async def test_a_client_that_trusts_the_authority_gets_in(tmp_path: Path, protocol: str) -> None:
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    async with listening(settings=settings(tmp_path)) as door:
        assert await gets_in(door, protocol, authority)
        assert not await gets_in(door, protocol, Authority("another"))
        async with aiohttp.ClientSession() as session:
            plain = door.stub.Embed(ask("rain")) if protocol == "grpc" else session.get(f"http://{door.http}/health")
            with pytest.raises((grpc.aio.AioRpcError, aiohttp.ClientConnectionError)):
                await plain


@EITHER
async def test_with_mtls_only_clients_of_the_authority_get_in_under_their_names(tmp_path: Path, protocol: str) -> None:
    authority, other = Authority(), Authority("another")
    authority.issue("server").write(tmp_path, "server")
    names = [("client", None), ("client", "spiffe://example.org/search"), (None, None)]
    mtls = settings(tmp_path, authority.cert, authentication={"client_certificates": True})
    with taken_calls() as taken:
        async with listening(settings=mtls) as door:
            for name, uri in names:
                client = authority.issue(name, uri=uri).write(tmp_path, "client")
                assert await gets_in(door, protocol, authority, client)
            assert not await gets_in(door, protocol, authority, other.issue("client").write(tmp_path, "stranger"))
            assert not await gets_in(door, protocol, authority)
    assert [request.tenant for request in taken] == ["client", "spiffe://example.org/search", "localhost"]


@EITHER
async def test_rotated_certificates_are_shown_without_restart_and_no_call_fails(tmp_path: Path, protocol: str) -> None:
    authority = Authority()
    authority.issue("first").write(tmp_path, "server")
    async with listening(settings=settings(tmp_path)) as door, connection(door, protocol, authority) as call:
        address = door.address if protocol == "grpc" else door.http

        async def name() -> str:
            await asyncio.sleep(1.1)
            return await asyncio.to_thread(served_name, address, authority.cert)

        await call()
        assert await name() == "first"
        second = authority.issue("second")
        (tmp_path / "server.crt").write_bytes(second.cert)  # half of a rotation: the key is still the old one
        assert await name() == "first"
        (tmp_path / "server.key").write_bytes(second.key)
        assert await name() == "second"
        await call()  # a connection that is open stays
        assert await gets_in(door, protocol, authority)


@EITHER
async def test_a_rotated_client_authority_lets_in_new_clients_and_no_old_ones(tmp_path: Path, protocol: str) -> None:
    servers, old, new = Authority(), Authority("old"), Authority("new")
    servers.issue("server").write(tmp_path, "server")
    before, after = (ca.issue("client").write(tmp_path, name) for ca, name in ((old, "before"), (new, "after")))
    async with listening(settings=settings(tmp_path, old.cert)) as door:
        assert await gets_in(door, protocol, servers, before)
        (tmp_path / "client-ca.crt").write_bytes(new.cert)
        await asyncio.sleep(1.1)
        assert await gets_in(door, protocol, servers, after)
        assert not await gets_in(door, protocol, servers, before)


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


@LOOPS
def test_handshakes_over_http_are_connections_and_give_way_as_idle_ones(tmp_path: Path, run: Run) -> None:
    run(_handshakes_over_http_are_connections_and_give_way_as_idle_ones(tmp_path))


async def _handshakes_over_http_are_connections_and_give_way_as_idle_ones(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    async with listening(settings=settings(tmp_path), limits={"max_connections": 2}) as door:
        host, _, port = door.http.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
        assert await gets_in(door, "http", authority)
        async with asyncio.timeout(10):
            assert await silent[0][0].read() == b""
        assert door.figure("tokenbatch.http.closed", reason="crowded") >= 1
        for _, writer in silent:
            writer.close()


@LOOPS
def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(tmp_path: Path, run: Run) -> None:
    run(_a_request_that_comes_with_the_end_of_the_handshake_is_answered(tmp_path))


async def _a_request_that_comes_with_the_end_of_the_handshake_is_answered(tmp_path: Path) -> None:
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    async with listening(settings=settings(tmp_path)) as door:
        host, _, port = door.http.rpartition(":")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = ssl.create_default_context(cadata=authority.cert.decode()).wrap_bio(
            incoming, outgoing, server_hostname="localhost"
        )
        reader, writer = await asyncio.open_connection(host, int(port))
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        client.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        writer.write(outgoing.read())  # both in one packet
        answer = b""
        async with asyncio.timeout(10):
            while b"\r\n\r\n" not in answer:
                incoming.write(await reader.read(65536))
                try:
                    answer += client.read(65536)
                except ssl.SSLWantReadError:
                    continue
        assert answer.startswith(b"HTTP/1.1 200")
        writer.close()


def test_without_files_there_is_no_tls() -> None:
    assert server_credentials(TlsSettings()) is None


@LOOPS
def test_handshakes_succeed_while_the_loop_is_busy(tmp_path: Path, run: Run) -> None:
    """The first bytes of each lie in the socket before the loop accepts it, and while it does other work."""
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    run(_handshakes_beside_a_busy_loop(tmp_path, authority))


async def _handshakes_beside_a_busy_loop(folder: Path, authority: Authority) -> None:
    loop = asyncio.get_running_loop()
    async with listening(settings=settings(folder)) as door:
        handshakes = [loop.run_in_executor(None, served_name, door.http, authority.cert) for _ in range(12)]
        together = asyncio.gather(*handshakes)
        while not together.done():
            ends_s = time.perf_counter() + 0.02
            while time.perf_counter() < ends_s:
                pass
            await asyncio.sleep(0)
        assert await together == ["server"] * 12


async def test_suites_without_an_authenticated_cipher_are_refused(tmp_path: Path) -> None:
    """Those that chain blocks, which TLS 1.2 still allows."""
    authority = Authority()
    authority.issue("server").write(tmp_path, "server")
    async with listening(settings=settings(tmp_path)) as door:
        host, _, port = door.http.rpartition(":")
        for suite, gets_in in (("ECDHE+AESGCM", True), ("ECDHE+CHACHA20", True), ("ECDHE+AES:!AESGCM:!AESCCM", False)):
            context = ssl.create_default_context(cadata=authority.cert.decode())
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            context.set_ciphers(suite)
            connecting = asyncio.open_connection(host, int(port), ssl=context)
            if gets_in:
                _, writer = await connecting
                writer.close()
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await connecting
